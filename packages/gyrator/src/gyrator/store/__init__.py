"""Compiled programs in the cache."""
