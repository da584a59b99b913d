"""From kernels to C++ text for CPUs, with the prelude headers that the text includes."""
