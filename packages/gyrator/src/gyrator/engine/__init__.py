"""From an ATen graph to a callable: the stages in order, with caching and fallbacks."""
