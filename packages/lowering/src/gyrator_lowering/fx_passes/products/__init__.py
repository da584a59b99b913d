"""Passes over products, which choose how libraries are called and fuse ops into the calls."""
