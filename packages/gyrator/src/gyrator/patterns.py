"""Search and replace in ATen graphs, for `Session(passes=...)`: see `Rewrite`."""

from gyrator_lowering.patterns import Match, PatternError, Rewrite

__all__ = ["Match", "PatternError", "Rewrite"]
