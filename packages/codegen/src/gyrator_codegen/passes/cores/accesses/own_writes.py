"""`own-writes`: avoid atomic operations by giving each thread its own addresses.

A combining store (`StoreMode.ADD` ...) may collide with that of another point. If the address
determines the index along an axis, points with different indices along it never collide. Threads
that only share this axis then need no atomics, and every address receives its values in a fixed
order.
"""

from collections.abc import Sequence
from math import gcd, prod
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import extent_guess
from gyrator_codegen.nests import Nest, axis_of, grid_loop, nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Axis, Store, StoreMode
from gyrator_ir.define import frozen
from gyrator_ir.expr import Add, Expr, ShapeFacts
from gyrator_ir.expr import Const as Number
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.loops import kernel_facts
from gyrator_ir.tile.nodes import Loop, TiledKernel


@frozen
class OwnWrites(KernelPass):
    """Distribute only axes that own addresses among threads, if that occupies all threads."""

    cores: int = 1
    least: int = 8
    """Minimum number of points per unit."""

    name: ClassVar[str] = "own-writes"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled) if tiled.atomic else None
        if loops is None:
            return tiled
        symbols = {a.symbol for a in owners(kernel, kernel_facts(kernel, facts))}
        first = tuple(x for x in loops.rows if x.axes[0] in symbols and x.step == 1)
        rows = first + tuple(x for x in loops.rows if x not in first)
        last = (grid_loop(loops.symbol, loops.grid_step),) if loops.across else ()
        count = prod(extent_guess(axis_of(kernel, x.axes[0]).extent) for x in first)
        if count >= self.cores:
            return _owned(tiled, (*rows, *last), len(first))
        if loops.symbol not in symbols or not loops.across or loops.columns or tiled.transposed:
            return tiled
        step = self._step(extent_guess(loops.axis.extent), count, loops)
        if step is None:
            return tiled
        return _owned(tiled, (grid_loop(loops.symbol, step), *rows), len(first) + 1)

    def _step(self, extent: int, count: int, loops: Nest) -> int | None:
        """Return the number of points per unit along the vectors' axis such that there are enough
        units for all threads, or None if there cannot be."""
        units = -(-self.cores // max(count, 1))
        least = max(loops.lanes, self.least)
        step = max(extent // units // least * least, least)
        if count * extent < self.cores * step:
            return None
        return min(step, loops.grid_step) if loops.rows else step


def _owned(tiled: TiledKernel, grid: Sequence[Loop], shared: int) -> TiledKernel:
    loops = (*grid, *tiled.loops[len(grid) :])
    assert tiled.threads is not None
    return evolve(tiled, loops=loops, threads=evolve(tiled.threads, loops=shared), atomic=())


def owners(kernel: Kernel, inside: ShapeFacts) -> tuple[Axis, ...]:
    """Return the axes whose index is determined by the address of every combining store.

    Args:
        kernel: a kernel.
        inside: the facts inside of the kernel's loops, including the ranges of their symbols.
    """
    addresses = {
        s.index for s in kernel.statements if isinstance(s, Store) and s.mode is not StoreMode.SET
    }
    return tuple(a for a in kernel.axes if all(_owns(a, e, inside) for e in addresses))


def _owns(axis: Axis, address: Expr, inside: ShapeFacts) -> bool:
    """Return whether `address = high + factor * axis + low`, up to a constant, where the range of
    `low` is smaller than `factor`, and `high` is a multiple of a number larger than the range of
    the rest."""
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
