"""Checks for kernels that the LLVM kernel language cannot express, before emission."""

from collections.abc import Iterator

from gyrator_codegen.analysis import static
from gyrator_codegen.refusals import Refusals
from gyrator_codegen_llvm.dtypes import TYPES
from gyrator_codegen_llvm.kernel import before_folds
from gyrator_codegen_llvm.ops import EMITTERS
from gyrator_ir.body.nodes import Reduce, ReduceKind, ScanStep, SortStep
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import LoopKind, Method, Tiled, TiledKernel
from gyrator_ir.types import DType

DTYPE = "GY-LLVM-001"
"""A dtype that LLVM kernels do not support."""
OPERATION = "GY-LLVM-002"
"""An op that LLVM kernels do not have, or a sort."""
SHAPE = "GY-LLVM-003"
"""Scans that cannot share a stage."""
LOCAL = "GY-LLVM-004"
"""A local of unknown or large size, or not addressed by the linear position."""
TILING = "GY-LLVM-005"
"""Tiling decisions that LLVM kernels cannot implement."""

LOCAL_BYTES = 1 << 20
"""Maximum size of a local, which is on the stack."""


def refusals(kernel: Kernel, target: Target) -> Iterator[Diagnostic]:
    """Yield the reasons why the kernel cannot be emitted."""
    reasons = Refusals(kernel, "LLVM")
    # Without the instructions, conversions of `f16` are calls of functions that may not exist.
    lacking = {DType.F16} if target.arch == "plain" else set()
    yield from reasons.types(DTYPE, TYPES.keys() - lacking)
    yield from reasons.ops(OPERATION, EMITTERS)
    yield from reasons.collectives(SHAPE)
    for stage in kernel.stages:
        for s in stage.body:
            if isinstance(s, SortStep):
                yield reasons.of(OPERATION, "LLVM kernels do not sort", s.names[0])
        if any(isinstance(s, Reduce | ScanStep) for s in before_folds(stage.body)):
            message = "a reduction in two passes over the results of a scan"
            yield reasons.of(SHAPE, message, help="run them as two kernels")
    for t in kernel.locals:
        extent = static(t.extent)
        if extent is None or extent * t.dtype.size > LOCAL_BYTES:
            message = f"a local of {t.extent!r} elements does not fit on the stack"
            yield reasons.of(LOCAL, message, t.name, "give the values a buffer of their own")
    yield from reasons.locals(LOCAL)


def refused_tiling(tiled: Tiled) -> str | None:
    """Return the decisions that LLVM kernels do not support, or None."""
    if not isinstance(tiled, TiledKernel):
        return "groups and templates"
    if tiled.contraction or tiled.threads or tiled.transposed or tiled.pipelined or tiled.choices:
        return "products, threads, transposed and pipelined loads, and choices"
    if any(r.method is not Method.ACCUMULATE or r.unroll != 1 or r.chain for r in tiled.reductions):
        return "reductions other than by plain accumulation"
    kernel = tiled.kernel
    reduces = (s for s in kernel.statements if isinstance(s, Reduce))
    if any(
        s.kind in (ReduceKind.SUM, ReduceKind.DOT) and s.dtype.is_float
        and not (r.wide or s.dtype is DType.F64)
        for s, r in zip(reduces, tiled.reductions, strict=True)
    ):  # fmt: skip
        return "sums of narrow floats in their own type"
    grid = [(LoopKind.GRID, (a.symbol,)) for a in kernel.axes]
    expected = grid + [(LoopKind.LOOP, (a.symbol,)) for a in kernel.inner]
    steps = [x.step for x in tiled.loops]
    steps[len(grid) - 1 : len(grid)] = [1] if grid else []
    if [(x.kind, x.axes) for x in tiled.loops] != expected or any(step != 1 for step in steps):
        return "loops over several axes, or in steps other than strips of the last axis of points"
    return None
