"""What the Halide language can't express, said before anything is written."""

from collections.abc import Iterator

from gyrator_codegen_halide.ops import STORAGE, has
from gyrator_codegen_halide.values import Scheduling, Values, reach
from gyrator_ir.body.nodes import Const, IndexValue, Let, ScanStep, SortStep
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import Const as Number
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.types import DType

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
    for code, why, where in _reasons(kernel, target.capabilities.ops_lacking, how):
        place = f"{where} in kernel {kernel.name}" if where else f"kernel {kernel.name}"
        return Diagnostic(code, why, where=place, help="leave the operation to its ATen op")
    return None


def _reasons(
    kernel: Kernel, lacking: frozenset[str], how: Scheduling
) -> Iterator[tuple[str, str, str]]:
    for name, dtype in _types(kernel):
        if dtype not in STORAGE:
            yield DTYPE, f"Halide kernels do not compute on {dtype.value}", name
    values = Values(kernel, how)
    for stage in kernel.stages:
        for s in stage.body:
            if isinstance(s, Let):
                types = [values.types[a] for a in s.args]
                if s.op in lacking or not has(s.op, types):
                    yield OPERATION, f"Halide kernels have no {s.op} of {types[0].value}", s.name
            elif isinstance(s, SortStep):
                yield OPERATION, "Halide kernels do not sort", s.names[0]
            elif isinstance(s, ScanStep) and len(kernel.inner) != 1:
                yield ORDER, "Halide kernels scan along one axis", s.names[0]
    if how.blocks and not values.single:
        yield ORDER, "on a GPU, Halide kernels are one loop nest over a strided tensor", ""
    for load in values.lost:
        yield ORDER, "a value is loaded after a store to another place", load
    for buffer in kernel.parameters:
        size = reach(kernel, buffer)
        if size is None and values.copied:
            yield ORDER, "a buffer of unknown length may be read after it is written", buffer.name
        elif isinstance(size, Number) and size.value > 0x7FFFFFFF:
            yield SIZE, "Halide's coordinates have 31 bits", buffer.name


def _types(kernel: Kernel) -> Iterator[tuple[str, DType]]:
    yield from ((b.name, b.dtype) for b in kernel.parameters)
    yield from ((scratch.name, scratch.dtype) for scratch in kernel.locals)
    for stage in kernel.stages:
        for s in stage.body:
            if isinstance(s, Let | Const | IndexValue):
                yield s.name, s.dtype
