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

Tile = Callable[[Kernel], TiledKernel]

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


def refusal(kernel: Kernel, target: Target, tile: Tile) -> Diagnostic | None:
    """Return why the kernel cannot be emitted, or None. `tile` tiles it."""
    return next(_refusals(kernel, target, cache(lambda: in_one_step(tile(kernel)))), None)


def _refusals(kernel: Kernel, target: Target, fits: Callable[[], bool]) -> Iterator[Diagnostic]:
    capabilities, extent = target.capabilities, extent_of(kernel.inner)
    refusals = Refusals(kernel, "Triton", f" on {target.arch}")
    yield from refusals.types(DTYPE, TYPES.keys() & capabilities.dtypes)
    yield from refusals.ops(OPERATION, EMITTERS.keys() - capabilities.ops_lacking)
    for stage in kernel.stages:
        both = len({s.reverse for s in stage.body if isinstance(s, ScanStep)}) > 1
        if both and not fits():
            message = f"one loop over {extent!r} elements cannot scan in both directions"
            yield refusals.of(LOOPED, message, help="run the scans as two kernels")
        if any(isinstance(s, SortStep) for s in stage.body) and not fits():
            yield refusals.of(SORT, f"a row of {extent!r} elements is too long to sort in a kernel")
    yield from refusals.locals(LOCAL)
    yield from refusals.atomics(ATOMIC, target, lacking=(StoreMode.MUL,))
    if kernel.locals and not fits():
        message = f"locals of {extent!r} elements do not fit in registers"
        help = "recompute the values, or store them in a buffer"
        yield refusals.of(LOOPED, message, help=help)


def check_tiling(tiled: Tiled) -> None:
    """Raise UnsupportedError for tiling decisions that cannot be emitted."""
    message: str | None = None
    match tiled:
        case Repeat():
            message = "Triton kernels cannot share an emitted function"
        case TiledGroup(kernels=(TiledKernel(contraction=None) as kernel,)):
            message = block_refusal(kernel)
        case TiledGroup():
            message = "a group must consist of one kernel that is not a matrix product"
        case TiledKernel():
            message = block_refusal(tiled)
    if message:
        help = "tile for this language with `gyrator_codegen.passes.block_pipeline`"
        raise UnsupportedError.of(TILING, message, where=f"kernel {name_of(tiled)}", help=help)
