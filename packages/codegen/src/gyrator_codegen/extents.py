"""Sizes as tile passes compare them."""

from gyrator_ir.expr import Const, Expr, ShapeFacts

_UNKNOWN = 256  # what a dynamic extent is taken for when work is compared


def extent_guess(extent: Expr) -> int:
    """Return the extent, or a typical number for one that is not constant."""
    return extent.value if isinstance(extent, Const) else _UNKNOWN


def guess(size: Expr, facts: ShapeFacts, unknown: int = _UNKNOWN) -> int:
    """Return a typical value of a size, or `unknown` where nothing is known."""
    known = facts.hint(size)
    return unknown if known is None else known


def power_of_two(value: int) -> int:
    """Return the least power of two that is not below `value`; 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()
