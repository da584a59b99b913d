"""Triton helper functions of generated kernels, included on demand."""
