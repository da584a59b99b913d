"""`column-reductions`: strips of neighbouring points are reduced together, row by row.

The rows stream through while the strip's accumulators stay in the nearest cache, so that memory is
read in long consecutive runs.
"""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.analysis import ordered, static
from gyrator_codegen.extents import extent_guess
from gyrator_codegen.nests import Nest, axis_of, grid_loop, nest, plain_loop
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class ColumnReductions(KernelPass):
    """Put the loops over inner axes around that over vectors of points, where they are long."""

    cores: int = 1
    least_rows: int = 24
    """Shorter reductions keep one vector of points in registers instead."""
    widest: int = 512
    """The most points of a strip."""
    few: int = 3
    """With more reductions than this, strips are half as wide."""

    name: ClassVar[str] = "column-reductions"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        if not tiled.reductions:
            return tiled
        loops = nest(tiled)
        if loops is None or not loops.across or not self._suits(tiled.kernel):
            return tiled
        grid = (*loops.rows, grid_loop(loops.symbol, self._width(tiled, loops)))
        inner = tuple(plain_loop(a.symbol) for a in tiled.kernel.inner)
        return evolve(tiled, loops=(*grid, *inner, loops.vectors))

    def _suits(self, kernel: Kernel) -> bool:
        rows = 1
        for a in kernel.inner:
            rows *= extent_guess(a.extent)
        if rows < self.least_rows or kernel.locals:
            return False
        return not any(map(ordered, kernel.stages)) and not _looks_up(kernel)

    def _width(self, tiled: TiledKernel, loops: Nest) -> int:
        """Return the points of a strip: wide for long runs of memory, narrow enough for all
        threads."""
        widest = self.widest if len(tiled.reductions) <= self.few else self.widest // 2
        extent = static(loops.axis.extent)
        if extent is None:
            return widest
        units = 1
        for row in loops.rows:
            units *= static(axis_of(tiled.kernel, row.axes[0]).extent) or 1
        share = -(-extent * units // max(self.cores, 1))
        lanes = loops.lanes
        return max(min(widest, -(-share // lanes) * lanes, -(-extent // lanes) * lanes), lanes)


def _looks_up(kernel: Kernel) -> bool:
    """Say whether loaded values are indices for whole points."""
    return any(isinstance(s, Bind) for g in kernel.stages if g.level is Level.OUTER for s in g.body)
