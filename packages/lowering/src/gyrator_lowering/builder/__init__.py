"""The builder that lowering rules write to: a growing Loop IR program and traced bodies."""
