"""Text that every unit has: Halide's side of the op table, of kernels, and the entry's C++."""
