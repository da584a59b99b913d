"""Along which axes a kernel's accesses are consecutive in memory."""

from gyrator_codegen.lanes import lane_access
from gyrator_ir.body.nodes import Axis, Load, Store
from gyrator_ir.expr import Expr
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.nodes import Access

VECTOR = 16
"""Elements, or bytes, that an access takes at once."""
_INNER = 4
"""How much more an access counts that is repeated for each inner element."""


def consecutive(index: Expr, axis: Axis) -> bool:
    """Say whether an address grows by one from element to element of an axis."""
    return lane_access(index, axis.symbol, VECTOR, frozenset()).kind is Access.UNIT


def consecutive_inside(kernel: Kernel) -> bool:
    """Say whether more accesses are consecutive along the last inner axis than along a point's."""
    if not kernel.inner:
        return False
    inner = {a.symbol for a in kernel.inner}
    score = 0
    for stage in kernel.stages:
        for s in stage.body:
            if isinstance(s, Load | Store):
                weight = 1 if s.index.free_symbols.isdisjoint(inner) else _INNER
                score += weight * consecutive(s.index, kernel.inner[-1])
                if kernel.axes:
                    score -= weight * consecutive(s.index, kernel.axes[-1])
    return score >= 0
