"""Checks for kernels that the C++ kernel language cannot express, before emission."""

from collections.abc import Iterator

from gyrator_codegen import vector_refusal
from gyrator_codegen.refusals import Refusals
from gyrator_codegen_cpp.dtypes import STORAGE
from gyrator_codegen_cpp.ops import EMITTERS
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel

DTYPE = "GY-CPP-001"
"""A dtype that C++ kernels do not support."""
OPERATION = "GY-CPP-002"
"""An op that C++ kernels do not have."""
SHAPE = "GY-CPP-003"
"""Reductions, scans or sorts that cannot share a stage."""
TILING = "GY-CPP-004"
"""Tiling decisions that C++ kernels cannot implement."""


def refusals(kernel: Kernel, target: Target) -> Iterator[Diagnostic]:
    """Yield the reasons why the kernel cannot be emitted."""
    reasons = Refusals(kernel, "C++")
    yield from reasons.types(DTYPE, STORAGE)
    yield from reasons.ops(OPERATION, EMITTERS.keys() - target.capabilities.ops_lacking)
    yield from reasons.collectives(SHAPE)


def tiling_refusal(tiled: TiledKernel, isa: Isa) -> Diagnostic | None:
    """Return why the kernel cannot be emitted as tiled, or None."""
    reason = vector_refusal(tiled, isa.lanes)
    refused = Refusals(tiled.kernel, "C++")
    return None if reason is None else refused.tiling(TILING, reason, "vector_pipeline")
