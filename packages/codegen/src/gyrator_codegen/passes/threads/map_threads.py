"""`map-threads`: the numbers of threads per point and of points per thread group."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import guess, in_order, ordered, power_of_two
from gyrator_codegen.lanes import consecutive_inside
from gyrator_codegen.passes.blocks.choose_blocks import sorts
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Loop, LoopKind, TiledKernel


@frozen
class MapThreads(KernelPass):
    """Assign each point to one thread, a SIMD group, or a whole thread group.

    One thread does reductions of up to `serial` elements, those that must be done in order, and, if
    there are at least `many` points, those whose points are contiguous in memory. A whole thread
    group does reductions of at least `long` elements, and sorts rows with one thread per element.
    """

    name: ClassVar[str] = "map-threads"
    simd: int = 32
    """Threads of a SIMD group, which exchange values without memory."""
    group: int = 256
    serial: int = 16
    long: int = 2048
    many: int = 4096

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        lanes = self._lanes(kernel, facts) if kernel.inner else 1
        points = self.group // lanes if lanes <= self.simd and not sorts(kernel) else 1
        loops = [Loop(LoopKind.GRID, tuple(a.symbol for a in kernel.axes), points)]
        if kernel.inner:
            loops.append(Loop(LoopKind.LOOP, tuple(a.symbol for a in kernel.inner), lanes))
        return evolve(tiled, loops=tuple(loops))

    def _lanes(self, kernel: Kernel, facts: ShapeFacts) -> int:
        """Return the number of threads per point. It is correct for any number of elements."""
        inner = extent_of(kernel.inner)
        extent, points = guess(inner, facts), guess(extent_of(kernel.axes), facts)
        if sorts(kernel):
            return max(power_of_two(inner.value), self.simd) if isinstance(inner, Const) else 1
        if in_order(kernel) or extent <= self.serial:
            return 1
        if any(map(ordered, kernel.stages)):
            return self.simd
        if points >= self.many and not consecutive_inside(kernel):
            return 1
        return self.group if extent >= self.long else self.simd
