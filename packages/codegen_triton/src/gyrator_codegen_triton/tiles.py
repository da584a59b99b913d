"""Two-dimensional tiles for kernels that move data: where loads and stores want different orders.

A flattened block is consecutive along one axis only. Where an access is consecutive along another,
its elements lie far apart, and each costs a whole line of memory. A tile is consecutive along both.
"""

from collections.abc import Sequence

from attrs import evolve

from gyrator_codegen import Access, extent_guess, lane_access
from gyrator_ir.expr import Expr, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.loop.body import Axis, Load, Store

_SIDE = 8  # elements along an axis below which a tile gains nothing
_POINTS = 4096  # fewer points take no time
_VECTOR = 16


def tiled(kernel: Kernel, facts: ShapeFacts) -> Kernel | None:
    """Return a pointwise kernel with its axes in two groups, or None where one block does.

    The second group stands as inner axes. Each group's last axis is one along which some accesses
    are consecutive.
    """
    if kernel.inner or len(kernel.axes) < 2 or len(kernel.stages) != 1 or kernel.locals:
        return None
    cut = _cut(kernel, facts)
    if cut is None:
        return None
    first, second = kernel.axes[: cut + 1], kernel.axes[cut + 1 :]
    sides = [_extent(group, facts) for group in (first, second)]
    if min(_guess(kernel.axes[cut].extent, facts), *sides) < _SIDE or sides[0] * sides[1] < _POINTS:
        return None
    (stage,) = kernel.stages
    return evolve(kernel, axes=first, inner=second, stages=(Stage(Level.INNER, stage.body),))


def _cut(kernel: Kernel, facts: ShapeFacts) -> int | None:
    """Return the axis that ends the first group: along which most strided bytes are consecutive."""
    axes = kernel.axes
    sizes = {b.name: b.dtype.size for b in kernel.parameters}
    gain = dict.fromkeys(range(len(axes) - 1), 0)
    straight = 0
    for s in kernel.stages[0].body:
        if not isinstance(s, Load | Store):
            continue
        symbols = s.index.free_symbols
        if axes[-1].symbol not in symbols or _unit(s.index, axes[-1]):
            straight += sizes[s.buffer] * (axes[-1].symbol in symbols)
            continue
        along = next((k for k in reversed(gain) if _unit(s.index, axes[k])), None)
        if along is not None:
            gain[along] += sizes[s.buffer]
    best = max(gain, key=lambda k: gain[k])
    return best if gain[best] and straight else None


def _unit(index: Expr, axis: Axis) -> bool:
    return lane_access(index, axis.symbol, _VECTOR, frozenset()).kind is Access.UNIT


def _extent(axes: Sequence[Axis], facts: ShapeFacts) -> int:
    product = 1
    for axis in axes:
        product *= _guess(axis.extent, facts)
    return product


def _guess(extent: Expr, facts: ShapeFacts) -> int:
    known = facts.hint(extent)
    return extent_guess(extent) if known is None else known
