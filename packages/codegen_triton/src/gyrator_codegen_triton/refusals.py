"""Checks for kernels that the Triton kernel language cannot express, before emission."""

from collections.abc import Callable, Iterator
from functools import cache

from gyrator_codegen.positions import block_refusal
from gyrator_codegen.refusals import Refusals
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.ops import EMITTERS
from gyrator_ir.body.nodes import ScanStep, SortStep, StoreMode
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.tile.choices import name_of
from gyrator_ir.tile.loops import extent_of, in_one_step
from gyrator_ir.tile.nodes import Repeat, Tiled, TiledGroup, TiledKernel

DTYPE = "GY-TRITON-001"
"""A dtype that Triton kernels do not support."""
OPERATION = "GY-TRITON-002"
"""An op that the target lacks."""
SORT = "GY-TRITON-003"
"""A sort of a row that does not fit in a block, or of an unknown length."""
ATOMIC = "GY-TRITON-004"
"""A scatter mode without atomics for the dtype on the target."""
LOOPED = "GY-TRITON-005"
"""Locals of a row that does not fit in registers, or scans in both directions over one."""
LOCAL = "GY-TRITON-006"
"""A local that is not addressed by the linear position."""
TILING = "GY-TRITON-008"
"""Tiling decisions that Triton kernels cannot express."""


def refusals(
    kernel: Kernel, target: Target, tile: Callable[[Kernel], TiledKernel]
) -> Iterator[Diagnostic]:
    """Yield the reasons why the kernel cannot be emitted. `tile` tiles it."""
    fits = cache(lambda: in_one_step(tile(kernel)))
    capabilities, extent = target.capabilities, extent_of(kernel.inner)
    reasons = Refusals(kernel, "Triton", f" on {target.arch}")
    yield from reasons.types(DTYPE, TYPES.keys() & capabilities.dtypes)
    yield from reasons.ops(OPERATION, EMITTERS.keys() - capabilities.ops_lacking)
    for stage in kernel.stages:
        both = len({s.reverse for s in stage.body if isinstance(s, ScanStep)}) > 1
        if both and not fits():
            message = f"one loop over {extent!r} elements cannot scan in both directions"
            yield reasons.of(LOOPED, message, help="run the scans as two kernels")
        if any(isinstance(s, SortStep) for s in stage.body) and not fits():
            yield reasons.of(SORT, f"a row of {extent!r} elements is too long to sort in a kernel")
    yield from reasons.locals(LOCAL)
    yield from reasons.atomics(ATOMIC, target, lacking=(StoreMode.MUL,))
    if kernel.locals and not fits():
        message = f"locals of {extent!r} elements do not fit in registers"
        help = "recompute the values, or store them in a buffer"
        yield reasons.of(LOOPED, message, help=help)


def check_tiling(tiled: Tiled) -> None:
    """Raise UnsupportedError for tiling decisions that cannot be emitted."""
    message: str | None = None
    match tiled:
        case Repeat():
            message = "Triton kernels cannot share an emitted function"
        case TiledGroup(kernels=kernels) if any(k.contraction is not None for k in kernels):
            message = "a matrix product cannot share a launch"
        case TiledGroup(kernels=kernels):
            message = next(filter(None, map(block_refusal, kernels)), None)
            if message is None and len({_warps(k) for k in kernels}) > 1:
                message = "candidates of different numbers of warps in a launch"
        case TiledKernel():
            message = block_refusal(tiled)
    if message:
        help = "tile for this language with `gyrator_codegen.passes.block_pipeline`"
        raise UnsupportedError.of(TILING, message, where=f"kernel {name_of(tiled)}", help=help)


def _warps(tiled: TiledKernel) -> tuple[int | None, ...]:
    return tuple(dict(c.values).get("num_warps") for c in tiled.candidates)
