"""Functions that generated kernels call: Triton text, of which a kernel gets what it uses."""
