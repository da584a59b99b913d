"""`reorder-axes`: traverse memory in its storage order."""

from functools import lru_cache
from typing import ClassVar

from gyrator_ir.body.nodes import Axis, Load, Store
from gyrator_ir.define import frozen
from gyrator_ir.expr import ZERO, Expr, linear
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Reduction
from gyrator_ir.loop.uses import inner_of, statements_of, stores_after
from gyrator_scheduler.fusion.axes import guess
from gyrator_scheduler.fusion.cluster import ORDERED_KINDS
from gyrator_scheduler.passes.rewriting import each_loop, rebuilt

STORE_WEIGHT = 2
"""Weight of a store relative to a load: it also reads its cache line."""


@frozen
class ReorderAxes:
    """Sort parallel axes, and reduced axes, by descending stride. If accesses disagree, the
    majority decides, with stores counting double. The axes of an arg-reduction are not reordered,
    since they determine its result."""

    name: ClassVar[str] = "reorder-axes"
    points_only: bool = False
    """Do not reorder reduced axes."""

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with axes in storage order."""
        return each_loop(program, lambda op: _reordered(op, self.points_only))


def _reordered(op: LoopOperation, points_only: bool) -> LoopOperation:
    inner = inner_of(op)
    if len(op.axes) < 2 and len(inner) < 2:
        return op
    points = by_memory(op, op.axes)
    reduced = inner
    if isinstance(op, Reduction) and not points_only and op.reduce.kind not in ORDERED_KINDS:
        reduced = by_memory(op, inner)
    if points == op.axes and reduced == inner:
        return op
    return rebuilt(op, points, reduced, op.body, stores_after(op))


def by_memory(op: LoopOperation, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes sorted by descending stride in most accesses. The sort is stable."""
    if len(axes) < 2:
        return axes
    return _by_votes(
        axes,
        tuple([s.index for s in statements_of(op) if isinstance(s, Load)]),
        tuple([s.index for s in statements_of(op) if isinstance(s, Store)]),
    )


@lru_cache(1 << 12)
def _by_votes(
    axes: tuple[Axis, ...], loads: tuple[Expr, ...], stores: tuple[Expr, ...]
) -> tuple[Axis, ...]:
    """Sort axes by their strides in these addresses. Cached: a pure function of its arguments."""
    symbols = [a.symbol for a in axes]
    votes = [[0] * len(axes) for _ in axes]
    for address, weight in (*((e, 1) for e in loads), *((e, STORE_WEIGHT) for e in stores)):
        split = linear(address, symbols)
        if split is None:
            continue
        strides = [None if split[0][x] is ZERO else abs(guess(split[0][x])) for x in symbols]
        for n, a in enumerate(strides):
            for m, b in enumerate(strides):
                if a is not None and b is not None and a > b:
                    votes[n][m] += weight
    order: list[int] = []
    for n in range(len(axes)):
        position = len(order)
        while position and votes[n][order[position - 1]] > votes[order[position - 1]][n]:
            position -= 1
        order.insert(position, n)
    return tuple(axes[n] for n in order)
