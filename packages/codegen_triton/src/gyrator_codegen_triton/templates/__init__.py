"""Kernels that are written from templates: dense computations, a file each."""
