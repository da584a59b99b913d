"""Checks for kernels that the Halide language cannot express, before emission."""

from collections.abc import Iterator

from gyrator_codegen.refusals import Refusals
from gyrator_codegen_halide.ops import STORAGE, has
from gyrator_codegen_halide.values import Scheduling, Values
from gyrator_ir.body.nodes import Let, ScanStep, SortStep
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import Const
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.kernel.reach import accessed_extent
from gyrator_ir.target import Target

DTYPE = "GY-HALIDE-001"
"""A dtype that Halide kernels do not support."""
OPERATION = "GY-HALIDE-002"
"""An op that Halide kernels do not have."""
ORDER = "GY-HALIDE-003"
"""Statements whose order cannot be expressed by Halide's definitions."""
SIZE = "GY-HALIDE-004"
"""A tensor beyond Halide's 32-bit coordinates."""


def refusals(kernel: Kernel, target: Target, how: Scheduling) -> Iterator[Diagnostic]:
    """Yield the reasons why the kernel cannot be emitted."""
    reasons, lacking = Refusals(kernel, "Halide"), target.capabilities.ops_lacking
    yield from reasons.types(DTYPE, STORAGE)
    values = Values(kernel, how)
    for s in values.kernel.statements:
        if isinstance(s, Let):
            types = [values.types[a] for a in s.args]
            if s.op in lacking or not has(s.op, types):
                yield reasons.op(OPERATION, s, f" of {types[0].value}")
        elif isinstance(s, SortStep):
            yield reasons.of(OPERATION, "Halide kernels do not sort", s.names[0])
        elif isinstance(s, ScanStep) and len(kernel.inner) != 1:
            yield reasons.of(ORDER, "Halide kernels scan along one axis", s.names[0])
    if how.blocks and not values.single:
        yield reasons.of(ORDER, "on a GPU, Halide kernels are one loop nest over a strided tensor")
    for load in values.lost:
        yield reasons.of(ORDER, "a value is loaded after a store to another address", load)
    for buffer in values.kernel.parameters:
        size = accessed_extent(values.kernel, buffer)
        if size is None and values.copied:
            message = "a buffer of unknown length may be read after it is written"
            yield reasons.of(ORDER, message, buffer.name)
        elif isinstance(size, Const) and size.value > 0x7FFFFFFF:
            yield reasons.of(SIZE, "Halide's coordinates have 31 bits", buffer.name)
