"""Storage of compiled programs in the cache."""
