"""What the Metal kernel language can't express, said before anything is written."""

from collections.abc import Iterator

from gyrator_codegen.refusals import Refusals
from gyrator_codegen_metal.dtypes import TYPES
from gyrator_codegen_metal.ops import EMITTERS
from gyrator_codegen_metal.threads import MOST
from gyrator_ir.body.nodes import ScanStep, SortStep
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import Const
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.tile.loops import extent_of

DTYPE = "GY-METAL-002"
"""An element type that Metal kernels do not compute on."""
OPERATION = "GY-METAL-003"
"""An op that Metal kernels do not have."""
ATOMIC = "GY-METAL-004"
"""A scatter whose mode is not atomic on the target for the type."""
ORDERED = "GY-METAL-005"
"""A sort of a row that has more elements than a threadgroup has threads, or beside a scan; scans
both ways."""
LOCAL = "GY-METAL-006"
"""A local of an unknown or large length, or that is not addressed by the linear position."""
BUFFERS = "GY-METAL-007"
"""More arguments than a function has places for."""

PLACES = 31
LOCAL_EXTENT = 4096
"""Elements of a local at most: what the threads of a point keep to themselves."""


def refusal(kernel: Kernel, target: Target) -> Diagnostic | None:
    """Return why the kernel can't be written, or None."""
    return next(_refusals(kernel, target), None)


def _refusals(kernel: Kernel, target: Target) -> Iterator[Diagnostic]:
    why = Refusals(kernel, "Metal")
    yield from why.types(DTYPE, TYPES)
    if len(kernel.parameters) + len(kernel.sizes) >= PLACES:
        said = f"a function has {PLACES} places for tensors and sizes, one of them for checks"
        yield why.of(BUFFERS, said)
    for t in kernel.locals:
        if not isinstance(t.extent, Const) or t.extent.value > LOCAL_EXTENT:
            said = f"a local of {t.extent!r} elements is more than threads keep"
            help = "compute the values again, or give them a buffer of their own"
            yield why.of(LOCAL, said, t.name, help)
    everything = [s for stage in kernel.stages for s in stage.body]
    ordered = {type(s) for s in everything if isinstance(s, ScanStep | SortStep)}
    ways = [{s.reverse for s in x.body if isinstance(s, ScanStep)} for x in kernel.stages]
    if len(ordered) > 1 or any(len(x) > 1 for x in ways):
        said = "scans both ways in one stage, or beside a sort"
        yield why.of(ORDERED, said, help="run them as two kernels")
    extent = extent_of(kernel.inner)
    if SortStep in ordered and not (isinstance(extent, Const) and extent.value <= MOST):
        yield why.of(ORDERED, f"a row of {extent!r} elements is more than a threadgroup sorts")
    yield from why.ops(OPERATION, EMITTERS)
    yield from why.locals(LOCAL)
    yield from why.atomics(ATOMIC, target)
