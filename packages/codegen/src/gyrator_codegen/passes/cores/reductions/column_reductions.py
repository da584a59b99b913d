"""`column-reductions`: reduce strips of adjacent points together, row by row.

The accumulators of a strip stay in the L1 cache while the rows are streamed, so that memory is read
in long contiguous runs.
"""

from math import prod
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import extent_guess, ordered, static
from gyrator_codegen.nests import Nest, axis_of, grid_loop, nest, plain_loop
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class ColumnReductions(KernelPass):
    """Move long loops over inner axes outside of the loop over vectors of points."""

    cores: int = 1
    least_rows: int = 24
    """Minimum length of the reduction; shorter ones keep one vector of points in registers."""
    widest: int = 512
    """Maximum number of points of a strip."""
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
        rows = prod(extent_guess(a.extent) for a in kernel.inner)
        if rows < self.least_rows or kernel.locals:
            return False
        return not any(map(ordered, kernel.stages)) and not _looks_up(kernel)

    def _width(self, tiled: TiledKernel, loops: Nest) -> int:
        """Return the number of points of a strip: large for long contiguous runs, but small enough
        to occupy all threads."""
        widest = self.widest if len(tiled.reductions) <= self.few else self.widest // 2
        extent = static(loops.axis.extent)
        if extent is None:
            return widest
        units = prod(static(axis_of(tiled.kernel, x.axes[0]).extent) or 1 for x in loops.rows)
        share = -(-extent * units // max(self.cores, 1))
        lanes = loops.lanes
        return max(min(widest, -(-share // lanes) * lanes, -(-extent // lanes) * lanes), lanes)


def _looks_up(kernel: Kernel) -> bool:
    """Return whether loaded values are used as indices outside of inner stages."""
    return any(isinstance(s, Bind) for g in kernel.stages if g.level is Level.OUTER for s in g.body)
