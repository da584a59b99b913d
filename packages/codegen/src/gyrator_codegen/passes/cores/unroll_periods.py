"""`unroll-periods`: unroll periodic patterns of points, such as real and imaginary parts."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.constant_folding import folded
from gyrator_codegen.passes.cores.vectorize import LANES_GUESS, choose_vector_axis, price
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.passes.unroller import Unroller, split_axis
from gyrator_ir.body.nodes import Axis, Store, StoreMode
from gyrator_ir.body.rewrite import expressions
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Const, FloorDiv, Mod, ShapeFacts, Sym, exact_quotient, iter_nodes
from gyrator_ir.kernel.nodes import Kernel, Stage
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.tile.plain import untiled

_LONGEST = 4
"""Maximum number of points that become one; each gets its own copy of the statements."""
_STATEMENTS = 256
"""Maximum number of statements of an unrolled body."""


@frozen
class UnrollPeriods(KernelPass):
    """Split an axis whose points alternate between computations, such as the interleaved parts of
    complex numbers, and unroll a period of it, if that makes accesses cheaper.

    Selections that differ between lanes become the same for all lanes, and interleaved elements are
    accessed in pairs of vectors. This pass runs before any decisions.
    """

    lanes: int = LANES_GUESS
    """Elements of a vector for which the cost of accesses is compared."""

    pairs: bool = False
    """Limit periods with stores to adjacent elements to two, since only pairs of stores are
    combined."""

    name: ClassVar[str] = "unroll-periods"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.inner or not kernel.axes or len(kernel.stages) > 1 or not only_sets(kernel):
            return tiled
        return cheapest(tiled, self._unrolled(kernel), self.lanes)

    def _unrolled(self, kernel: Kernel) -> Iterator[tuple[Kernel, int]]:
        for axis, period in _periods(kernel):
            unrolled = _unrolled(kernel, axis, period)
            if not (self.pairs and period > 2 and _stores_adjacent(unrolled)):
                yield unrolled, period


def cheapest(tiled: TiledKernel, unrolled: Iterable[tuple[Kernel, int]], lanes: int) -> TiledKernel:
    """Return the cheapest per point of a kernel and its unrolled forms; the kernel itself if none
    is cheaper.

    Args:
        tiled: the kernel, before any decisions.
        unrolled: equivalent kernels, each with how many points of `tiled` one of its points is.
        lanes: elements of a vector for which the costs are compared.
    """
    candidates = list(unrolled)
    if not candidates:
        return tiled
    best, least = tiled.kernel, _price_of(tiled.kernel, lanes)
    for candidate, points in candidates:
        cost = _price_of(candidate, lanes) / points
        if cost < least and same_parameters(tiled.kernel, candidate):
            best, least = candidate, cost
    if best is tiled.kernel:
        return tiled
    result = untiled(best)
    assert isinstance(result, TiledKernel)
    return result


def only_sets(kernel: Kernel) -> bool:
    """Return whether no store combines with the stored value."""
    stores = (s for s in kernel.statements if isinstance(s, Store))
    return all(s.mode is StoreMode.SET for s in stores)


def _stores_adjacent(kernel: Kernel) -> bool:
    stores = [s for s in kernel.statements if isinstance(s, Store)]
    addresses = {(s.buffer, s.index) for s in stores}
    return any((s.buffer, s.index + ONE) in addresses for s in stores)


def same_parameters(kernel: Kernel, other: Kernel) -> bool:
    """Return whether another kernel uses the parameters of a kernel, in the same order."""
    accessed = dict.fromkeys((*other.reads, *other.writes))
    return tuple(accessed) == tuple(b.name for b in kernel.parameters)


def _price_of(kernel: Kernel, lanes: int) -> float:
    axis = choose_vector_axis(kernel, lanes)
    return float("inf") if axis is None else price(kernel, lanes, axis)


def _periods(kernel: Kernel) -> Iterator[tuple[Axis, int]]:
    """Yield axes with possible periods: small divisors of their extent by which indices divide."""
    longest = most_points(kernel)
    divisors: dict[Sym, set[int]] = {a.symbol: set() for a in kernel.axes}
    for e in {e for s in kernel.statements for e in expressions(s)}:
        for node in iter_nodes(e):
            if not isinstance(node, FloorDiv | Mod) or not isinstance(node.b, Const):
                continue
            for symbol in node.a.free_symbols:
                if symbol in divisors:
                    divisors[symbol].add(node.b.value)
    for axis in kernel.axes:
        periods = divisors[axis.symbol]
        if isinstance(axis.extent, Const):
            periods.add(axis.extent.value)
        for period in sorted(periods):
            if 1 < period <= longest and exact_quotient(axis.extent, Const(period)) is not None:
                yield axis, period


def most_points(kernel: Kernel) -> int:
    """Return how many points of a kernel may become one."""
    size = sum(len(stage.body) for stage in kernel.stages)
    return min(_LONGEST, _STATEMENTS // max(size, 1))


def _unrolled(kernel: Kernel, axis: Axis, period: int) -> Kernel:
    """Return the kernel with an axis `period` times shorter, each point of which computes a whole
    period."""
    shorter, points = split_axis(kernel, axis, period)
    unroller = Unroller(kernel, axis.symbol, points)
    body = kernel.statements
    stored = {s.buffer for s in body if isinstance(s, Store)}
    types = {b.name: b.dtype for b in kernel.parameters}
    stages = tuple(
        Stage(stage.level, folded([*unroller.unrolled(stage.body)], stored, types))
        for stage in kernel.stages
    )
    return evolve(shorter, stages=stages)
