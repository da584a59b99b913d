"""Strides of tensors."""

from collections.abc import Sequence

from gyrator_ir.expr.build import mul
from gyrator_ir.expr.nodes import ONE, ZERO, Expr


def contiguous_strides(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return row-major strides, in elements, as eager computes them.

    A constant size of 0 counts as 1. Symbolic sizes are never 0 or 1 in eager's strides either,
    unless torch proved it.
    """
    strides: list[Expr] = []
    step: Expr = ONE
    for size in reversed(shape):
        strides.append(step)
        step = step if size is ZERO else mul(step, size)
    return tuple(reversed(strides))
