"""Ops that take graphs: branches, loops, attention with a score function, and wrapped calls."""
