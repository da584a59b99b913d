"""Rules that compute ops with the bits of ATen's CPU kernels (`numerics="bitwise"`)."""
