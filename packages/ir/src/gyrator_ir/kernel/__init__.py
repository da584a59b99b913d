"""Kernel IR: fused kernels and calls, in order, with lifetimes."""
