"""Lowering rules, one family in each file, with a function `register(table)`."""
