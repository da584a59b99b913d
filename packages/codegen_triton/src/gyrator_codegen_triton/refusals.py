"""What the Triton kernel language can't express, said before anything is written."""

from collections.abc import Callable, Iterator
from functools import cache

from gyrator_codegen.refusals import Refusals
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.ops import EMITTERS
from gyrator_ir.body.nodes import ScanStep, SortStep, StoreMode
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.tile.loops import extent_of, in_one_step
from gyrator_ir.tile.nodes import TiledKernel

Tile = Callable[[Kernel], TiledKernel]

DTYPE = "GY-TRITON-001"
"""An element type that Triton kernels do not compute on."""
OPERATION = "GY-TRITON-002"
"""An op that the target lacks."""
SORT = "GY-TRITON-003"
"""A sort of a row that does not fit, or of an unknown length."""
ATOMIC = "GY-TRITON-004"
"""A scatter whose mode is not atomic on the target for the type."""
LOOPED = "GY-TRITON-005"
"""Locals over a range that does not fit into registers, or scans both ways over one."""
LOCAL = "GY-TRITON-006"
"""A local that is not addressed by the linear position."""


def refusal(kernel: Kernel, target: Target, tile: Tile) -> Diagnostic | None:
    """Return why the kernel can't be written, or None. `tile` decides how it would run."""
    return next(_refusals(kernel, target, cache(lambda: in_one_step(tile(kernel)))), None)


def _refusals(kernel: Kernel, target: Target, whole: Callable[[], bool]) -> Iterator[Diagnostic]:
    can, extent = target.capabilities, extent_of(kernel.inner)
    why = Refusals(kernel, "Triton", f" on {target.arch}")
    yield from why.types(DTYPE, TYPES.keys() & can.dtypes)
    yield from why.ops(OPERATION, EMITTERS.keys() - can.ops_lacking)
    for stage in kernel.stages:
        both = len({s.reverse for s in stage.body if isinstance(s, ScanStep)}) > 1
        if both and not whole():
            said = f"one loop over {extent!r} elements can't scan both ways"
            yield why.of(LOOPED, said, help="run the scans as two kernels")
        if any(isinstance(s, SortStep) for s in stage.body) and not whole():
            yield why.of(SORT, f"a row of {extent!r} elements is more than kernels sort")
    yield from why.locals(LOCAL)
    yield from why.atomics(ATOMIC, target, lacking=(StoreMode.MUL,))
    if kernel.locals and not whole():
        said = f"locals of {extent!r} elements do not fit into registers"
        help = "compute the values again, or give them a buffer of their own"
        yield why.of(LOOPED, said, help=help)
