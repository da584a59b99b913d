"""Decisions about kernels that share a launch."""
