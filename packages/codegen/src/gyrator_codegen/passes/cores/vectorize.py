"""`vectorize`: choose the axis of vectors that makes a kernel's accesses cheapest."""

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import extent_guess, in_order, ordered
from gyrator_codegen.lanes import PRICES, lane_access
from gyrator_codegen.nests import grid_loop, plain_loop
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Axis, Bind, Let, Load, Reduce, ScanKind, ScanStep, SortStep, Store
from gyrator_ir.body.rewrite import defined, expressions, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Const, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.tile.nodes import Access, TiledKernel
from gyrator_ir.types import DType

LANES_GUESS = 8
"""The number of lanes for which accesses are compared if the compiler does the vectorisation."""
_TWO = Const(2)
_NEAR = 6  # cost of a load whose lanes are permuted elements of one vector
_WINDOWED = frozenset({DType.BF16, DType.F16, DType.F32, DType.I32, DType.U32})
_PAIRED = 4  # cost of an access with stride 2 whose gaps are accessed too
_REDUCE_END = 12  # cost of merging the lanes of one accumulator, in vector operations
_ROUND = 6  # cost of rounding to a 16-bit float
_CACHED_ROW = 512  # longer rows of 16-bit floats evict one another from the first cache
_HALVES = frozenset({DType.BF16, DType.F16})
_LOG_ADD = 40  # cost of a step of a log-sum-exp scan, in scalar operations


@frozen
class Vectorize(KernelPass):
    """Give each kernel a vector loop: the innermost loop or, along an axis of points, a loop inside
    of that axis's grid loop and outside of the loops over inner axes."""

    lanes: int = 1
    """Elements of a vector; 1 to leave vectorisation to the compiler."""
    lanes_guess: int = LANES_GUESS
    """The number of lanes for which axes are compared in that case."""

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

    None for a kernel without axes. Ties are resolved in favour of the last inner axis, then of the
    last axis of points. Along an inner axis, stages with a scan or a sort still process one element
    at a time. A sort processes one point at a time, and so excludes axes of points; in-order
    reductions exclude inner axes.
    """
    inner = () if in_order(kernel) else kernel.inner
    candidates = list(inner[-1:])
    if not any(isinstance(s, SortStep) for s in kernel.statements):
        candidates += reversed(kernel.axes)
    candidates += reversed(inner[:-1])
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return min(candidates, key=partial(price, kernel, lanes))


def price(kernel: Kernel, lanes: int, axis: Axis) -> float:
    """Return the approximate cost per point, in vector operations, of vectors along an axis."""
    inner_size = prod(max(extent_guess(a.extent), 1) for a in kernel.inner)
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
    logarithms = sum(
        isinstance(s, ScanStep) and s.kind is ScanKind.LOGSUMEXP for s in kernel.statements
    )
    roundings = sum(
        isinstance(s, Let) and s.op == "cast" and s.dtype in _HALVES
        for stage in kernel.stages
        if stage.level is Level.INNER and ordered(stage)
        for s in stage.body
    )
    one_by_one = inner or extent < lanes or inner_size > _CACHED_ROW
    total += roundings * _ROUND * inner_size * (1 if one_by_one else waste / lanes)
    # It computes in f64, for which vectors have half as many lanes.
    total += logarithms * _LOG_ADD * inner_size * (1 if inner else 2 * waste / lanes)
    if inner:
        reduces = sum(isinstance(s, Reduce) for s in kernel.statements)
        total += reduces * _REDUCE_END
    return total


def _accesses(kernel: Kernel, symbol: Sym, lanes: int) -> Iterator[tuple[Stage, int]]:
    """Yield the cost of each access, and its stage."""
    varying = _varying(kernel, symbol)
    slow = _slow_places(kernel, symbol) if lanes >= LANES_GUESS else {}
    for stage in kernel.stages:
        accesses = [s for s in stage.body if isinstance(s, Load | Store)]
        addresses = {(type(s), s.buffer, s.index) for s in accesses}
        for s in accesses:
            access = lane_access(s.index, symbol, lanes, varying)
            kind = access.kind
            if access.stride is _TWO and any(
                (type(s), s.buffer, s.index + step) in addresses for step in (1, -1)
            ):
                yield stage, _PAIRED
                continue
            if isinstance(s, Load) and _near(kernel, s, varying, slow):
                yield stage, _NEAR
                continue
            if kind is not Access.UNIT and isinstance(s, Store):
                kind = Access.LANES  # a scattered store costs more than a gathered load
            yield stage, PRICES[kind]


def _slow_places(kernel: Kernel, symbol: Sym) -> dict[Sym, Expr]:
    """Return the symbols bound to places in rows that are no longer than the axis of `symbol`, and
    the lengths of these rows.

    As a rule such places grow by at most one from lane to lane, as those of an enlarged image do.
    """
    extent = next((a.extent for a in (*kernel.axes, *kernel.inner) if a.symbol is symbol), ZERO)
    return {
        s.symbol: s.size
        for s in kernel.statements
        if isinstance(s, Bind) and s.mask is None and not s.wrap
        if extent_guess(s.size) <= extent_guess(extent)
    }


def _near(kernel: Kernel, load: Load, varying: frozenset[Sym], lengths: Mapping[Sym, Expr]) -> bool:
    """Whether the lanes of a load are at places in a row of one of `lengths`, so that a window can
    hold them."""
    moving = load.index.free_symbols & varying
    if load.mask is not None or len(moving) != 1 or moving.isdisjoint(lengths):
        return False
    (place,) = moving
    buffer = next((b for b in kernel.parameters if b.name == load.buffer), None)
    return (
        buffer is not None
        and len(buffer.shape) > 1
        and buffer.shape[-1] is lengths[place]
        and buffer.strides[-1] is ONE
        and buffer.dtype in _WINDOWED
        and place not in (load.index - place).free_symbols
    )


def _varying(kernel: Kernel, symbol: Sym) -> frozenset[Sym]:
    """Return the symbols bound to values that vary along `symbol`."""
    body = kernel.statements
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
