"""`strips`: how many consecutive points are computed together."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.lanes import consecutive_inside
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class Strips(KernelPass):
    """Compute strips of points at once where a reduction's elements are apart in memory and those
    of its points consecutive, for compilers that vectorise the innermost loop: it is then over
    points."""

    name: ClassVar[str] = "strips"
    points: int = 256

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if not kernel.inner or not kernel.axes or kernel.locals or consecutive_inside(kernel):
            return tiled
        last = len(kernel.axes) - 1
        loops = list(tiled.loops)
        loops[last] = evolve(loops[last], step=self.points)
        return evolve(tiled, loops=tuple(loops))
