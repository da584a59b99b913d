"""`vectorize`: the axis along which vectors make a kernel's accesses cheapest."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.analysis import in_order, ordered
from gyrator_codegen.extents import extent_guess
from gyrator_codegen.lanes import PRICES, lane_access
from gyrator_codegen.nests import grid_loop, plain_loop
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Axis, Bind, Load, Reduce, SortStep, Store
from gyrator_ir.body.rewrite import defined, expressions, used
from gyrator_ir.expr import Const, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.tile.nodes import Access, TiledKernel

LANES_GUESS = 8
"""For how many lanes accesses are compared where the compiler vectorises by itself."""
_TWO = Const(2)
_PAIRED = 4  # price of every second element, where its neighbours are accessed too
_REDUCE_END = 12  # price of merging the lanes of one accumulator, in vector operations


@frozen
class Vectorize(KernelPass):
    """Give each kernel a loop over vectors: the innermost one, or, along points, one outside of
    those over inner axes, in a grid loop of its own."""

    lanes: int = 1
    """Elements of a vector; 1 where the compiler vectorises by itself."""
    lanes_guess: int = LANES_GUESS
    """What axes are compared for in that case."""

    name: ClassVar[str] = "vectorize"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        wide = self.lanes if self.lanes > 1 else self.lanes_guess
        axis = choose_vector_axis(kernel, wide)
        if axis is None:
            return tiled
        vectors = plain_loop(axis.symbol, self.lanes)
        grid = tuple(grid_loop(a.symbol) for a in kernel.axes if a is not axis)
        inner = tuple(plain_loop(a.symbol) for a in kernel.inner if a is not axis)
        if axis in kernel.inner:
            return evolve(tiled, loops=(*grid, *inner, vectors))
        unit = grid_loop(axis.symbol, wide)
        return evolve(tiled, loops=(*grid, unit, vectors, *inner))


def choose_vector_axis(kernel: Kernel, lanes: int) -> Axis | None:
    """Return the axis along which vectors of `lanes` make the kernel's accesses cheapest.

    None for a kernel that has none. On equal price the last inner axis wins, then the last axis.
    Along an inner axis, stages with a scan or a sort still take one element at a time; a sort needs
    one point at a time, so it rules out the points' axes. Reductions in order rule out inner axes.
    """
    inner = () if in_order(kernel) else kernel.inner
    candidates = list(inner[-1:])
    if not any(isinstance(s, SortStep) for stage in kernel.stages for s in stage.body):
        candidates += reversed(kernel.axes)
    candidates += reversed(inner[:-1])
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return min(candidates, key=partial(price, kernel, lanes))


def price(kernel: Kernel, lanes: int, axis: Axis) -> float:
    """Return rough vector operations a point along an axis, for comparison only."""
    inner_size = 1
    for a in kernel.inner:
        inner_size *= max(extent_guess(a.extent), 1)
    extent = max(extent_guess(axis.extent), 1)
    inner = axis in kernel.inner
    vectors = -(-extent // lanes)
    waste = vectors * lanes / extent
    total = 0.0
    for stage, price in _accesses(kernel, axis.symbol, lanes):
        runs = inner_size if stage.level is Level.INNER else 1
        if inner and ordered(stage):
            total += runs
        elif inner and stage.level is Level.OUTER:
            total += 2 * runs
        else:
            total += price * runs * waste / lanes
    if inner:
        reduces = sum(isinstance(s, Reduce) for stage in kernel.stages for s in stage.body)
        total += reduces * _REDUCE_END
    return total


def _accesses(kernel: Kernel, symbol: Sym, lanes: int) -> Iterator[tuple[Stage, int]]:
    """Iterate over the prices of accesses, and the stages that they are in."""
    varying = _varying(kernel, symbol)
    for stage in kernel.stages:
        found = [s for s in stage.body if isinstance(s, Load | Store)]
        places = {(type(s), s.buffer, s.index) for s in found}
        for s in found:
            access = lane_access(s.index, symbol, lanes, varying)
            kind = access.kind
            if access.stride is _TWO and any(
                (type(s), s.buffer, s.index + step) in places for step in (1, -1)
            ):
                yield stage, _PAIRED
                continue
            if kind is not Access.UNIT and isinstance(s, Store):
                kind = Access.LANES  # a store by lanes costs more than a load by lanes
            yield stage, PRICES[kind]


def _varying(kernel: Kernel, symbol: Sym) -> frozenset[Sym]:
    """Return the symbols that are bound to values which differ along `symbol`."""
    body = [s for stage in kernel.stages for s in stage.body]
    varying: set[Sym] = set()
    if not any(isinstance(s, Bind) for s in body):
        return frozenset()
    moving: set[str] = set()
    for s in body:
        free = {symbol, *varying}
        moves = not moving.isdisjoint(used(s))
        if moves or any(not free.isdisjoint(e.free_symbols) for e in expressions(s)):
            moving.update(defined(s))
            if isinstance(s, Bind):
                varying.add(s.symbol)
    return frozenset(varying)
