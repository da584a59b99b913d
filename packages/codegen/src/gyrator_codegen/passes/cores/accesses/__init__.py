"""Passes that say how memory is read and written: addresses, owners, prefetches."""
