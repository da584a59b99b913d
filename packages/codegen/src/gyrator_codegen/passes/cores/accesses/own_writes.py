"""`own-writes`: threads that never combine into the same address need no atomic operations.

A store that combines (`StoreMode.ADD` ...) may meet another point's. Where the address tells the
value of an axis, points that differ in it never meet: threads that share out that axis alone meet
nowhere, and every address receives its values in one order.
"""

from collections.abc import Sequence
from math import gcd
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.extents import extent_guess
from gyrator_codegen.nests import Nest, axis_of, grid_loop, nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Axis, Store, StoreMode
from gyrator_ir.expr import Add, Expr, ShapeFacts
from gyrator_ir.expr import Const as Number
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.loops import kernel_facts
from gyrator_ir.tile.nodes import Loop, TiledKernel


@frozen
class OwnWrites(KernelPass):
    """Let threads share out the axes that own addresses, where there is work for all of them."""

    cores: int = 1
    least: int = 8
    """The fewest points of a stretch."""

    name: ClassVar[str] = "own-writes"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled) if tiled.atomic else None
        if loops is None:
            return tiled
        symbols = {a.symbol for a in owners(kernel, kernel_facts(kernel, facts))}
        first = tuple(x for x in loops.rows if x.axes[0] in symbols and x.step == 1)
        rows = first + tuple(x for x in loops.rows if x not in first)
        last = (grid_loop(loops.symbol, loops.stretch),) if loops.across else ()
        count = 1
        for x in first:
            count *= extent_guess(axis_of(kernel, x.axes[0]).extent)
        if count >= self.cores:
            return _owned(tiled, (*rows, *last), len(first))
        if loops.symbol not in symbols or not loops.across or loops.columns or tiled.transposed:
            return tiled
        step = self._stretch(extent_guess(loops.axis.extent), count, loops)
        if step is None:
            return tiled
        return _owned(tiled, (grid_loop(loops.symbol, step), *rows), len(first) + 1)

    def _stretch(self, extent: int, count: int, loops: Nest) -> int | None:
        """Return the points of a stretch of the vectors' axis, so that there are enough of them for
        all threads; None where that can't be."""
        wanted = -(-self.cores // max(count, 1))
        least = max(loops.lanes, self.least)
        step = max(extent // wanted // least * least, least)
        if count * extent < self.cores * step:
            return None
        return min(step, loops.stretch) if loops.rows else step


def _owned(tiled: TiledKernel, grid: Sequence[Loop], shared: int) -> TiledKernel:
    loops = (*grid, *tiled.loops[len(grid) :])
    assert tiled.threads is not None
    return evolve(tiled, loops=loops, threads=evolve(tiled.threads, loops=shared), atomic=())


def owners(kernel: Kernel, inside: ShapeFacts) -> tuple[Axis, ...]:
    """Return the axes whose value follows from the address of every store that combines.

    Args:
        inside: facts that hold inside of the kernel's loops, ranges of their symbols included.
    """
    addresses = {
        s.index
        for stage in kernel.stages
        for s in stage.body
        if isinstance(s, Store) and s.mode is not StoreMode.SET
    }
    return tuple(a for a in kernel.axes if all(_owns(a, e, inside) for e in addresses))


def _owns(axis: Axis, address: Expr, inside: ShapeFacts) -> bool:
    """Say whether `address = high + factor * axis + low`, up to a constant, where `low` spans less
    than `factor` and all of `high` is a multiple of more than the rest spans."""
    terms = _terms(address)
    factor = abs(terms.pop(axis.symbol, 0))
    if factor == 0:
        return False
    low, unit = 0, 0
    for e, coefficient in terms.items():
        if axis.symbol in e.free_symbols or abs(coefficient) == factor:
            return False
        if abs(coefficient) > factor:
            unit = gcd(unit, coefficient)
            continue
        span = _span(e, inside)
        if span is None:
            return False
        low += abs(coefficient) * span
    if low >= factor or unit == 0:
        return low < factor
    span = _span(axis.symbol, inside)
    return span is not None and low + factor * span < unit


def _terms(e: Expr) -> dict[Expr, int]:
    if isinstance(e, Number):
        return {}
    return dict(e.terms) if isinstance(e, Add) else {e: 1}


def _span(e: Expr, inside: ShapeFacts) -> int | None:
    low, high = inside.bounds(e)
    return None if low is None or high is None else max(high - low, 0)
