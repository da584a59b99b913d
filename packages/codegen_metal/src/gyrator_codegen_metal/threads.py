"""Mapping of a tiled kernel's loops to threads.

grid (i0, i1) by 256                         a thread per point
grid (i0, i1) by 256, loop (r0, r1)          which iterates over the inner elements
grid (i0) by 8, loop (r0) by 32              a SIMD group per point
grid (i0), loop (r0) by 256                  a threadgroup per point
"""

from gyrator_ir.body.nodes import ScanStep, SortStep
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Expr
from gyrator_ir.tile.choices import name_of
from gyrator_ir.tile.loops import axes_of, extent_of
from gyrator_ir.tile.nodes import LoopKind, Method, Reduction, Tiled, TiledKernel

SIMD = 32
"""Threads in a SIMD group, which exchange values without memory."""
MAX_THREADS = 1024
"""Maximum number of threads in a threadgroup."""
TILING = "GY-METAL-001"
"""Tiling decisions that Metal kernels cannot express."""


@frozen
class Threads:
    """The threads of a threadgroup."""

    points: int
    lanes: int
    """Number of threads that share a point's elements."""
    groups: Expr
    """Number of threadgroups."""

    @property
    def count(self) -> int:
        """Number of threads."""
        return self.points * self.lanes


def threads_of(tiled: Tiled) -> Threads:
    """Return a kernel's threads. UnsupportedError for tiling decisions that cannot be expressed."""
    threads: Threads | str = "Metal kernels cannot share an emitted function"
    if isinstance(tiled, TiledKernel):
        threads = _threads(tiled)
    if isinstance(threads, Threads):
        return threads
    help = "tile for this language with `gyrator_codegen.passes.thread_pipeline`"
    raise UnsupportedError.of(TILING, threads, where=f"kernel {name_of(tiled)}", help=help)


def _threads(tiled: TiledKernel) -> Threads | str:
    kernel = tiled.kernel
    if tiled.contraction or tiled.threads or tiled.transposed or tiled.pipelined:
        return "matrix units, host threads, transposed and pipelined loads are not supported"
    if tiled.prefetches or tiled.cleared or tiled.replicated or tiled.choices or tiled.wait:
        return "prefetches, cleared buffers, replicated loads, choices and waits are not supported"
    for r in tiled.reductions:
        if r != Reduction(r.result, Method.ACCUMULATE):
            return f"{r.result} must be reduced by plain accumulation"
    points, *inner = tiled.loops
    grid = points.kind is LoopKind.GRID and points.axes == tuple(a.symbol for a in kernel.axes)
    if not grid or len(inner) > 1 or [x.kind for x in inner] != [LoopKind.LOOP] * len(inner):
        return "the parallel axes must be one grid loop, and the inner axes one loop"
    step, lanes = points.step, inner[0].step if inner else 1
    assert isinstance(step, int) and isinstance(lanes, int), tiled.loops
    if (lanes > 1 and (lanes % SIMD or (lanes > SIMD and step > 1))) or step * lanes > MAX_THREADS:
        return f"{step} points of {lanes} threads each do not form a threadgroup"
    body = kernel.statements
    if step > 1 and any(isinstance(s, SortStep) for s in body):
        return "a row that is sorted needs its own threadgroup"
    if lanes > SIMD and any(isinstance(s, ScanStep) for s in body):
        return "a scan needs a single SIMD group"
    total = extent_of(axes_of(kernel, points))
    return Threads(step, lanes, (total + step - 1) // step)
