"""`reorder-axes`: walk memory in the order in which it lies."""

from functools import lru_cache
from typing import ClassVar

from attrs import frozen

from gyrator_ir.body.nodes import Axis, Load, Store
from gyrator_ir.expr import ZERO, Expr, linear
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Reduction
from gyrator_scheduler.access import inner_of, statements_of
from gyrator_scheduler.fusion.axes import guess
from gyrator_scheduler.fusion.cluster import ORDERED_KINDS
from gyrator_scheduler.passes.rewriting import each_loop, rebuilt, stores_after

STORE_WEIGHT = 2
"""A store counts as much as this many loads: it reads its line too."""


@frozen
class ReorderAxes:
    """Put points, and reduced axes, in the order of falling strides; where accesses disagree, most
    of them decide, stores counting double. The axes of an arg-reduction stay: they number
    places."""

    name: ClassVar[str] = "reorder-axes"
    points_only: bool = False
    """Reduced axes stay as they are."""

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with axes in the order of memory."""
        return each_loop(program, lambda op: _reordered(op, self.points_only))


def _reordered(op: LoopOperation, points_only: bool) -> LoopOperation:
    inner = inner_of(op)
    if len(op.axes) < 2 and len(inner) < 2:
        return op
    points = by_memory(op, op.axes)
    folded = inner
    if isinstance(op, Reduction) and not points_only and op.reduce.kind not in ORDERED_KINDS:
        folded = by_memory(op, inner)
    if points == op.axes and folded == inner:
        return op
    return rebuilt(op, points, folded, op.body, stores_after(op))


def by_memory(op: LoopOperation, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return axes, the one that most accesses walk with the smallest stride last. Stable."""
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
    """Order axes by these addresses, in a cache that nobody can observe."""
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
        place = len(order)
        while place and votes[n][order[place - 1]] > votes[order[place - 1]][n]:
            place -= 1
        order.insert(place, n)
    return tuple(axes[n] for n in order)
