"""Metal kernels for the GPUs of Macs."""
