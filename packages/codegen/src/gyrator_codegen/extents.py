"""Estimates of sizes, for the heuristics of tile passes."""

from gyrator_ir.expr import Const, Expr, ShapeFacts

_UNKNOWN = 256  # the estimate of a dynamic extent


def extent_guess(extent: Expr) -> int:
    """Return the extent, or a typical number for one that is not constant."""
    return extent.value if isinstance(extent, Const) else _UNKNOWN


def guess(size: Expr, facts: ShapeFacts, unknown: int = _UNKNOWN) -> int:
    """Return a typical value of a size, or `unknown` if it has no hint."""
    hint = facts.hint(size)
    return unknown if hint is None else hint


def power_of_two(value: int) -> int:
    """Return the least power of two that is at least `value`; 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()
