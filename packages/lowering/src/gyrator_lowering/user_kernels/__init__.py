"""Triton kernels that the user wrote."""
