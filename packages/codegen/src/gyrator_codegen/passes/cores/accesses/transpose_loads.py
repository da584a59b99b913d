"""`transpose-loads`: tiles of points are turned in fast memory, so that memory is read along its
rows.

A load whose neighbouring elements lie along another axis than the vectors would touch a cache line
a lane. Instead a tile of both axes is read along that other axis, and transposed.
"""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.extents import extent_guess
from gyrator_codegen.lanes import lane_access
from gyrator_codegen.nests import grid_loop, nest, plain_loop
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Load
from gyrator_ir.expr import ShapeFacts, Sym
from gyrator_ir.tile.nodes import Access, TiledKernel, Transposed

_NO_SYMBOLS: frozenset[Sym] = frozenset()


@frozen
class TransposeLoads(KernelPass):
    """Cut both axes of loads that want to be read along another axis than the vectors."""

    stretch: int = 2048
    """Elements along the vectors that a unit of parallel work takes."""
    vectors: int = 2
    """Rows of a tile, in vectors."""

    name: ClassVar[str] = "transpose-loads"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.inner or len(kernel.axes) < 2:
            return tiled
        loops = nest(tiled)
        if loops is None or not loops.across or loops.lanes == 1:
            return tiled
        lanes, along = loops.lanes, loops.axis
        if extent_guess(along.extent) < lanes:
            return tiled
        body = [s for stage in kernel.stages for s in stage.body]
        bound = {s.symbol for s in body if isinstance(s, Bind)}
        loads = [s for s in body if isinstance(s, Load) and _affine(s, bound)]
        best: Sym | None = None
        turned: list[Load] = []
        for axis in kernel.axes:
            if axis is along or extent_guess(axis.extent) < lanes:
                continue
            found = [s for s in loads if _turned(s, axis.symbol, along.symbol)]
            if len(found) > len(turned):
                best, turned = axis.symbol, found
        if best is None:
            return tiled
        rows = tuple(x for x in loops.rows if x.axes[0] is not best)
        grid = (*rows, grid_loop(best, self.vectors * lanes), grid_loop(along.symbol, self.stretch))
        return evolve(
            tiled,
            loops=(*grid, loops.vectors, plain_loop(best)),
            transposed=tuple(Transposed(s.name, best) for s in turned),
        )


def _affine(s: Load, bound: set[Sym]) -> bool:
    return s.mask is None and s.index.free_symbols.isdisjoint(bound)


def _turned(s: Load, across: Sym, along: Sym) -> bool:
    # One lane is enough to ask for: a quotient that is constant in it has to be affine.
    here = lane_access(s.index, across, 1 << 20, _NO_SYMBOLS).kind
    there = lane_access(s.index, along, 1 << 20, _NO_SYMBOLS).kind
    return here is Access.UNIT and there is Access.STRIDED
