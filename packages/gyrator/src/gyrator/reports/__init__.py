"""Reports of compiles, for users and tests."""
