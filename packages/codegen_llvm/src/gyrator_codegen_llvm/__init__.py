"""Kernels as LLVM IR for CPUs, compiled in process."""
