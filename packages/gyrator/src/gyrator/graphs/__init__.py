"""ATen graphs around the stages: cache keys, splitting into pieces, and eager fallbacks."""
