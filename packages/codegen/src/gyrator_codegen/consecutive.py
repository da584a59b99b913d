"""The axes along which a kernel's accesses are contiguous in memory."""

from gyrator_codegen.lanes import lane_access
from gyrator_ir.body.nodes import Axis, Load, Store
from gyrator_ir.expr import Expr
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.nodes import Access

VECTOR = 16
"""Elements of a vector for which accesses are classified; also the bytes of a vector access."""
_INNER = 4
"""Relative weight of an access that is repeated for each inner element."""


def consecutive(index: Expr, axis: Axis) -> bool:
    """Return whether an address grows by one from element to element of an axis."""
    return lane_access(index, axis.symbol, VECTOR, frozenset()).kind is Access.UNIT


def consecutive_inside(kernel: Kernel) -> bool:
    """Return whether at least as many accesses are contiguous along the last inner axis as along
    the last axis of points."""
    if not kernel.inner:
        return False
    inner = {a.symbol for a in kernel.inner}
    score = 0
    for s in kernel.statements:
        if isinstance(s, Load | Store):
            weight = 1 if s.index.free_symbols.isdisjoint(inner) else _INNER
            score += weight * consecutive(s.index, kernel.inner[-1])
            if kernel.axes:
                score -= weight * consecutive(s.index, kernel.axes[-1])
    return score >= 0
