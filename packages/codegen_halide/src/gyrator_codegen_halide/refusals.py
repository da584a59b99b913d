"""What the Halide language can't express, said before anything is written."""

from collections.abc import Iterator

from gyrator_codegen.refusals import Refusals
from gyrator_codegen_halide.ops import STORAGE, has
from gyrator_codegen_halide.values import Scheduling, Values, reach
from gyrator_ir.body.nodes import Let, ScanStep, SortStep
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import Const
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target

DTYPE = "GY-HALIDE-001"
"""An element type that Halide kernels do not compute on."""
OPERATION = "GY-HALIDE-002"
"""An op that Halide kernels do not have."""
ORDER = "GY-HALIDE-003"
"""Statements whose order Halide's definitions cannot give."""
SIZE = "GY-HALIDE-004"
"""A tensor beyond Halide's 32-bit coordinates."""


def refusal(kernel: Kernel, target: Target, how: Scheduling) -> Diagnostic | None:
    """Return why the kernel can't be written, or None."""
    return next(_refusals(kernel, target.capabilities.ops_lacking, how), None)


def _refusals(kernel: Kernel, lacking: frozenset[str], how: Scheduling) -> Iterator[Diagnostic]:
    why = Refusals(kernel, "Halide")
    yield from why.types(DTYPE, STORAGE)
    values = Values(kernel, how)
    for s in (s for stage in values.kernel.stages for s in stage.body):
        if isinstance(s, Let):
            types = [values.types[a] for a in s.args]
            if s.op in lacking or not has(s.op, types):
                yield why.op(OPERATION, s, f" of {types[0].value}")
        elif isinstance(s, SortStep):
            yield why.of(OPERATION, "Halide kernels do not sort", s.names[0])
        elif isinstance(s, ScanStep) and len(kernel.inner) != 1:
            yield why.of(ORDER, "Halide kernels scan along one axis", s.names[0])
    if how.blocks and not values.single:
        yield why.of(ORDER, "on a GPU, Halide kernels are one loop nest over a strided tensor")
    for load in values.lost:
        yield why.of(ORDER, "a value is loaded after a store to another place", load)
    for buffer in values.kernel.parameters:
        size = reach(values.kernel, buffer)
        if size is None and values.copied:
            said = "a buffer of unknown length may be read after it is written"
            yield why.of(ORDER, said, buffer.name)
        elif isinstance(size, Const) and size.value > 0x7FFFFFFF:
            yield why.of(SIZE, "Halide's coordinates have 31 bits", buffer.name)
