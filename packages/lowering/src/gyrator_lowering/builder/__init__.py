"""What lowering rules write to: a growing Loop IR program, traced bodies, wanted results."""
