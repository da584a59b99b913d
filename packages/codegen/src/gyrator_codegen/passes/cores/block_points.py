"""`block-points`: how many points along the vectors are one unit of parallel work."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.analysis import static
from gyrator_codegen.extents import extent_guess
from gyrator_codegen.nests import axis_of, grid_loop, nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class BlockPoints(KernelPass):
    """Cut the axis of the vectors into stretches, where other passes have not yet."""

    cores: int = 1
    elements: int = 2048
    """Elements of a stretch, those of inner axes counted."""
    least: int = 8
    """The fewest points of a stretch."""
    units_a_core: int = 8
    """So many other units for each core make stretches superfluous."""

    name: ClassVar[str] = "block-points"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled)
        if loops is None or not loops.across or loops.columns or tiled.transposed:
            return tiled
        along = loops.axis
        points = self.elements
        for a in kernel.inner:
            points //= max(extent_guess(a.extent), 1)
        least = max(loops.lanes, self.least)
        points = max(points // least * least, least)
        extent, units = static(along.extent), 1
        for row in loops.rows:
            units *= static(axis_of(kernel, row.axes[0]).extent) or 1
        many = units >= self.units_a_core * self.cores
        if loops.rows and extent is not None and (many or extent <= points):
            points = max(-(-extent // loops.lanes), 1) * loops.lanes
        grid = (*loops.rows, grid_loop(along.symbol, points))
        return evolve(tiled, loops=(*grid, *tiled.loops[len(loops.grid) :]))
