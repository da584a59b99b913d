"""Tile IR: kernels with every decision about the machine that runs them."""
