"""`map-threads`: how many threads share a point's elements, and how many points a group has."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.analysis import in_order, ordered
from gyrator_codegen.consecutive import consecutive_inside
from gyrator_codegen.extents import guess, power_of_two
from gyrator_codegen.passes.blocks.choose_blocks import sorts
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.expr import Const, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Loop, LoopKind, TiledKernel


@frozen
class MapThreads(KernelPass):
    """Give each point a thread, a SIMD group, or a whole group of threads.

    A thread alone takes short folds of up to `serial` elements, those whose order matters, and
    those across what is consecutive from point to point, if there are `many` points. A group of
    threads takes folds of at least `long` elements, and rows to sort: a thread for each element.
    """

    name: ClassVar[str] = "map-threads"
    simd: int = 32
    """Threads that exchange values without memory."""
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
        """Return how many threads share a point's elements. Whatever their number turns out to be,
        all of them are taken."""
        whole = extent_of(kernel.inner)
        extent, points = guess(whole, facts), guess(extent_of(kernel.axes), facts)
        if sorts(kernel):
            return max(power_of_two(whole.value), self.simd) if isinstance(whole, Const) else 1
        if in_order(kernel) or extent <= self.serial:
            return 1
        if any(map(ordered, kernel.stages)):
            return self.simd
        if points >= self.many and not consecutive_inside(kernel):
            return 1
        return self.group if extent >= self.long else self.simd
