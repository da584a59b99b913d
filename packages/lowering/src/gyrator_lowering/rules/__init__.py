"""Lowering rules, one family a file; each has `register(table)`."""
