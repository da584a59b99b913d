"""`block-points`: the number of points along the vectors per unit of parallel work."""

from math import prod
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import extent_guess, static
from gyrator_codegen.nests import axis_of, grid_loop, nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class BlockPoints(KernelPass):
    """Divide the axis of the vectors into units, unless another pass already has."""

    cores: int = 1
    elements: int = 2048
    """Elements per unit, including those of inner axes."""
    least: int = 8
    """Minimum number of points per unit."""
    units_a_core: int = 8
    """The axis is not divided if other axes have this many units per core."""

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
        extent = static(along.extent)
        units = prod(static(axis_of(kernel, x.axes[0]).extent) or 1 for x in loops.rows)
        many = units >= self.units_a_core * self.cores
        if loops.rows and extent is not None and (many or extent <= points):
            points = max(-(-extent // loops.lanes), 1) * loops.lanes
        grid = (*loops.rows, grid_loop(along.symbol, points))
        return evolve(tiled, loops=(*grid, *tiled.loops[len(loops.grid) :]))
