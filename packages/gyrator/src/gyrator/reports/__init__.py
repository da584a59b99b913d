"""What became of a compile, for people and tests."""
