"""Which threads compute what: the loops of a tiled kernel as text has them.

grid (i0, i1) by 256                         a thread for each point
grid (i0, i1) by 256, loop (r0, r1)          which walks the inner elements
grid (i0) by 8, loop (r0) by 32              a SIMD group for each point
grid (i0), loop (r0) by 256                  a threadgroup for each point
"""

from attrs import frozen

from gyrator_ir.body.nodes import ScanStep, SortStep
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Expr
from gyrator_ir.tile.choices import name_of
from gyrator_ir.tile.loops import axes_of, extent_of
from gyrator_ir.tile.nodes import LoopKind, Method, Tiled, TiledKernel

SIMD = 32
"""Threads that run in step, and exchange values without memory."""
MOST = 1024
"""Threads of a threadgroup."""
TILING = "GY-METAL-001"
"""Decisions that Metal kernels can't express."""


@frozen
class Threads:
    """The threads of a threadgroup."""

    points: int
    lanes: int
    """Those that share a point's elements."""
    groups: Expr
    """How many threadgroups there are."""

    @property
    def count(self) -> int:
        """How many there are."""
        return self.points * self.lanes


def threads_of(tiled: Tiled) -> Threads:
    """Return a kernel's threads. UnsupportedError for decisions that no text has a form for."""
    found = _threads(tiled) if isinstance(tiled, TiledKernel) else "each kernel has its own text"
    if isinstance(found, Threads):
        return found
    help = "tile for this language with `gyrator_codegen.passes.thread_pipeline`"
    raise UnsupportedError.of(TILING, found, where=f"kernel {name_of(tiled)}", help=help)


def _threads(tiled: TiledKernel) -> Threads | str:
    kernel = tiled.kernel
    if tiled.contraction or tiled.threads or tiled.transposed or tiled.pipelined:
        return "there are no matrix units, host threads, transposed or pipelined loads"
    if tiled.prefetches or tiled.cleared or tiled.replicated or tiled.choices:
        return "there are no prefetches, cleared buffers, replicated loads or choices"
    for r in tiled.reductions:
        if r.method is not Method.ACCUMULATE or r.unroll != 1 or r.chain or r.wide or r.block:
            return f"{r.result} is accumulated, and reduced in no other way"
    points, *inner = tiled.loops
    grid = points.kind is LoopKind.GRID and points.axes == tuple(a.symbol for a in kernel.axes)
    if not grid or len(inner) > 1 or [x.kind for x in inner] != [LoopKind.LOOP] * len(inner):
        return "points are one grid loop, and inner axes one loop"
    step, lanes = points.step, inner[0].step if inner else 1
    assert isinstance(step, int) and isinstance(lanes, int), tiled.loops
    if (lanes > 1 and (lanes % SIMD or (lanes > SIMD and step > 1))) or step * lanes > MOST:
        return f"{step} points of {lanes} threads each are no threadgroup"
    body = [s for stage in kernel.stages for s in stage.body]
    if step > 1 and any(isinstance(s, SortStep) for s in body):
        return "a row that is sorted has a threadgroup to itself"
    if lanes > SIMD and any(isinstance(s, ScanStep) for s in body):
        return "a scan is of one SIMD group"
    total = extent_of(axes_of(kernel, points))
    return Threads(step, lanes, (total + step - 1) // step)
