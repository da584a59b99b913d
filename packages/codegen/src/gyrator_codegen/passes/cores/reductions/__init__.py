"""Passes that decide how a core computes reductions."""
