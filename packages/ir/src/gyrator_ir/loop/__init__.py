"""Loop IR: one operation an ATen op, traced bodies, no policy."""
