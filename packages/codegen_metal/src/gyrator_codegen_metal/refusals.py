"""Checks for kernels that the Metal kernel language cannot express, before emission."""

from collections.abc import Iterator

from gyrator_codegen.refusals import Refusals
from gyrator_codegen_metal.dtypes import TYPES
from gyrator_codegen_metal.ops import EMITTERS
from gyrator_codegen_metal.threads import MAX_THREADS
from gyrator_ir.body.nodes import ScanStep, SortStep
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import Const
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.tile.loops import extent_of

DTYPE = "GY-METAL-002"
"""A dtype that Metal kernels do not support."""
OPERATION = "GY-METAL-003"
"""An op that Metal kernels do not have."""
ATOMIC = "GY-METAL-004"
"""A scatter mode without atomics for the dtype on the target."""
ORDERED = "GY-METAL-005"
"""A sort of a row with more elements than a threadgroup has threads, or together with a scan; scans
in both directions."""
LOCAL = "GY-METAL-006"
"""A local of an unknown or large length, or not addressed by the linear position."""
BUFFERS = "GY-METAL-007"
"""More arguments than a function supports."""

MAX_ARGUMENTS = 31
LOCAL_EXTENT = 4096
"""Maximum number of elements of a local, which is in thread memory."""


def refusals(kernel: Kernel, target: Target) -> Iterator[Diagnostic]:
    """Yield the reasons why the kernel cannot be emitted."""
    reasons = Refusals(kernel, "Metal")
    yield from reasons.types(DTYPE, TYPES)
    if len(kernel.parameters) + len(kernel.sizes) >= MAX_ARGUMENTS:
        message = f"a function has at most {MAX_ARGUMENTS} arguments for tensors, sizes and checks"
        yield reasons.of(BUFFERS, message)
    for t in kernel.locals:
        if not isinstance(t.extent, Const) or t.extent.value > LOCAL_EXTENT:
            message = f"a local of {t.extent!r} elements does not fit in thread memory"
            help = "recompute the values, or store them in a buffer"
            yield reasons.of(LOCAL, message, t.name, help)
    everything = kernel.statements
    ordered = {type(s) for s in everything if isinstance(s, ScanStep | SortStep)}
    directions = [{s.reverse for s in x.body if isinstance(s, ScanStep)} for x in kernel.stages]
    if len(ordered) > 1 or any(len(x) > 1 for x in directions):
        message = "scans in both directions in one stage, or together with a sort"
        yield reasons.of(ORDERED, message, help="run them as two kernels")
    extent = extent_of(kernel.inner)
    if SortStep in ordered and not (isinstance(extent, Const) and extent.value <= MAX_THREADS):
        message = f"a row of {extent!r} elements is too long to sort in a threadgroup"
        yield reasons.of(ORDERED, message)
    yield from reasons.ops(OPERATION, EMITTERS)
    yield from reasons.locals(LOCAL)
    yield from reasons.atomics(ATOMIC, target)
