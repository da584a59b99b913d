"""Passes that decide how memory is accessed: addresses, ownership, prefetches."""
