"""Passes over products: how the library is called, and what rides with a call."""
