"""From an ATen graph to a callable: the stages in order, and what surrounds them."""
