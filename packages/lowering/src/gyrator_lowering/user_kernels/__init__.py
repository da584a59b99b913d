"""User-written Triton kernels."""
