"""Parts of every unit: ops and kernels for Halide, and the C++ of the entry function."""
