"""Passes that say how a core computes reductions."""
