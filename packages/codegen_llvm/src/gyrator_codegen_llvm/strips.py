"""`strips`: how many consecutive points are computed together, and the check of the loops."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.lanes import consecutive_inside
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import LoopKind, Method, Tiled, TiledKernel


@frozen
class Strips(KernelPass):
    """Compute strips of points at once where a reduction's elements are apart in memory and those
    of its points consecutive: the innermost loop, which LLVM vectorises, is then over points."""

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


def refused_tiling(tiled: Tiled) -> str | None:
    """Return the decisions that LLVM kernels do not support, or None."""
    if not isinstance(tiled, TiledKernel):
        return "groups and templates"
    if tiled.contraction or tiled.threads or tiled.transposed or tiled.pipelined or tiled.choices:
        return "products, threads, transposed and pipelined loads, and choices"
    if any(r.method is not Method.ACCUMULATE or r.unroll != 1 or r.chain for r in tiled.reductions):
        return "reductions other than by plain accumulation"
    kernel = tiled.kernel
    grid = [(LoopKind.GRID, (a.symbol,)) for a in kernel.axes]
    expected = grid + [(LoopKind.LOOP, (a.symbol,)) for a in kernel.inner]
    steps = [x.step for x in tiled.loops]
    steps[len(grid) - 1 : len(grid)] = [1] if grid else []
    if [(x.kind, x.axes) for x in tiled.loops] != expected or any(step != 1 for step in steps):
        return "loops over several axes, or in steps other than strips of the last axis of points"
    return None
