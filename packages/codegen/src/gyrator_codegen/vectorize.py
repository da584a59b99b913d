"""Which loop of a kernel its vectors run along."""

from collections.abc import Iterator

from attrs import frozen

from gyrator_codegen.lanes import Access, lane_access
from gyrator_ir.expr import Const, Expr, Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.loop.body import Bind, Load, Reduce, ScanStep, SortStep, Store
from gyrator_ir.loop.rewrite import defined, expressions, used

_UNKNOWN_EXTENT = 256  # what a dynamic extent is taken for when work is compared
_REDUCE_END = 12  # price of folding the lanes of one accumulator, in vector operations


@frozen
class VectorAxis:
    """The loop that becomes vectors: one of the points' axes, or an inner one."""

    symbol: Sym
    inner: bool


def choose_vector_axis(kernel: Kernel, lanes: int) -> VectorAxis | None:
    """Return the axis along which vectors of `lanes` make the kernel's accesses cheapest.

    None for a kernel without axes. On equal price the last inner axis wins, then the last axis.
    Along an inner axis, stages with a scan or a sort still take one element at a time; a sort needs
    one point at a time, so it rules out the points' axes.
    """
    candidates = [VectorAxis(a.symbol, inner=True) for a in kernel.inner[-1:]]
    if not any(isinstance(s, SortStep) for stage in kernel.stages for s in stage.body):
        candidates += [VectorAxis(a.symbol, inner=False) for a in reversed(kernel.axes)]
    candidates += [VectorAxis(a.symbol, inner=True) for a in reversed(kernel.inner[:-1])]
    if not candidates:
        return None
    return min(candidates, key=lambda axis: _price(kernel, axis, lanes))


def _ordered(stage: Stage) -> bool:
    """Scans and sorts walk the inner axes one element at a time."""
    return any(isinstance(s, ScanStep | SortStep) for s in stage.body)


def extent_guess(extent: Expr) -> int:
    """Return the extent, or a middling number for one that is not known yet."""
    return extent.value if isinstance(extent, Const) else _UNKNOWN_EXTENT


def _price(kernel: Kernel, axis: VectorAxis, lanes: int) -> float:
    """Rough vector operations a point, for comparison only."""
    extents = {a.symbol: extent_guess(a.extent) for a in kernel.axes + kernel.inner}
    inner_size = 1
    for a in kernel.inner:
        inner_size *= max(extents[a.symbol], 1)
    extent = max(extents[axis.symbol], 1)
    vectors = -(-extent // lanes)
    waste = vectors * lanes / extent
    total = 0.0
    for stage, kind in _accesses(kernel, axis.symbol, lanes):
        runs = inner_size if stage.level is Level.INNER else 1
        if axis.inner and _ordered(stage):
            total += runs
        elif axis.inner and stage.level is Level.OUTER:
            total += 2 * runs
        else:
            total += kind.value * runs * waste / lanes
    if axis.inner:
        reduces = sum(isinstance(s, Reduce) for stage in kernel.stages for s in stage.body)
        total += reduces * _REDUCE_END
    return total


def _accesses(kernel: Kernel, symbol: Sym, lanes: int) -> Iterator[tuple[Stage, Access]]:
    moving: set[str] = set()
    varying: set[Sym] = set()
    for stage in kernel.stages:
        for s in stage.body:
            free: set[Sym] = set()
            for e in expressions(s):
                free |= e.free_symbols
            moves = symbol in free or not varying.isdisjoint(free) or not moving.isdisjoint(used(s))
            if moves:
                moving.update(defined(s))
            if isinstance(s, Bind) and moves:
                varying.add(s.symbol)
            if isinstance(s, Load | Store):
                kind = lane_access(s.index, symbol, lanes, frozenset(varying)).kind
                if isinstance(s, Store) and kind is not Access.UNIT:
                    kind = Access.LANES  # a store by lanes costs more than a load by lanes
                yield stage, kind
