"""What the Triton kernel language can't express, said before anything is written."""

from collections.abc import Callable, Iterator
from functools import cache

from gyrator_codegen import element_types, linear_position
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.ops import EMITTERS
from gyrator_ir.body.nodes import (
    Let,
    Load,
    ScanStep,
    SortStep,
    Store,
    StoreMode,
)
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

_LIBRARY = "leave the operation to its ATen op"


def refusal(kernel: Kernel, target: Target, tile: Tile) -> Diagnostic | None:
    """Return why the kernel can't be written, or None. `tile` decides how it would run."""
    return next(_refusals(kernel, target, cache(lambda: in_one_step(tile(kernel)))), None)


def _refusals(kernel: Kernel, target: Target, whole: Callable[[], bool]) -> Iterator[Diagnostic]:
    place = f"kernel {kernel.name}"
    for name, dtype in element_types(kernel):
        if dtype not in TYPES or dtype not in target.capabilities.dtypes:
            said = f"Triton kernels do not compute on {dtype.value} on {target.arch}"
            yield Diagnostic(DTYPE, said, where=f"{name} in {place}", help=_LIBRARY)
    local = {t.name: t.dtype for t in kernel.locals}
    types = {b.name: b.dtype for b in kernel.parameters}
    extent, position = extent_of(kernel.inner), linear_position(kernel.inner)
    lacking = target.capabilities.ops_lacking
    for stage in kernel.stages:
        both = len({s.reverse for s in stage.body if isinstance(s, ScanStep)}) > 1
        if both and not whole():
            said = f"one loop over {extent!r} elements can't scan both ways"
            yield Diagnostic(LOOPED, said, where=place, help="run the scans as two kernels")
        for s in stage.body:
            if isinstance(s, Let) and (s.op not in EMITTERS or s.op in lacking):
                said = f"Triton kernels have no {s.op} on {target.arch}"
                yield Diagnostic(OPERATION, said, where=f"{s.name} in {place}", help=_LIBRARY)
            elif isinstance(s, SortStep) and not whole():
                said = f"a row of {extent!r} elements is more than kernels sort"
                yield Diagnostic(SORT, said, where=place, help=_LIBRARY)
            elif isinstance(s, Load | Store) and s.buffer in local:
                if s.index is not position:
                    said = f"local {s.buffer} is not addressed by the position {position!r}"
                    help = "give the intermediate result a buffer of its own"
                    yield Diagnostic(LOCAL, said, where=place, help=help)
            elif isinstance(s, Store) and s.mode is not StoreMode.SET:
                wanted = (types[s.buffer], s.mode)
                if wanted not in target.capabilities.atomics or s.mode is StoreMode.MUL:
                    said = f"no atomic {s.mode.value} of {types[s.buffer].value} on {target.arch}"
                    yield Diagnostic(ATOMIC, said, where=f"{s.buffer} in {place}", help=_LIBRARY)
    if kernel.locals and not whole():
        yield Diagnostic(
            LOOPED,
            f"locals of {extent!r} elements do not fit into registers",
            where=place,
            help="compute the values again, or give them a buffer of their own",
        )
