"""What the C++ kernel language can't express, said before anything is written."""

from gyrator_codegen import unfit
from gyrator_codegen_cpp.dtypes import STORAGE
from gyrator_codegen_cpp.ops import EMITTERS
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.body.nodes import Const, IndexValue, Let, Reduce, ScanStep, SortStep
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

DTYPE = "GY-CPP-001"
"""An element type that C++ kernels do not compute on."""
OPERATION = "GY-CPP-002"
"""An op that C++ kernels do not have."""
SHAPE = "GY-CPP-003"
"""Collectives that can't share a stage."""


TILING = "GY-CPP-004"
"""Decisions that C++ kernels can't follow."""


def refusal(kernel: Kernel, target: Target) -> Diagnostic | None:
    """Return why the kernel can't be written, or None."""
    lacking = target.capabilities.ops_lacking
    for name, dtype in _types(kernel):
        if dtype not in STORAGE:
            return Diagnostic(
                DTYPE,
                f"C++ kernels do not compute on {dtype.value}",
                where=f"{name} in kernel {kernel.name}",
                help="leave the operation to its ATen op",
            )
    for stage in kernel.stages:
        for s in stage.body:
            if isinstance(s, Let) and (s.op not in EMITTERS or s.op in lacking):
                return Diagnostic(
                    OPERATION,
                    f"C++ kernels have no {s.op}",
                    where=f"{s.name} in kernel {kernel.name}",
                    help="leave the operation to its ATen op",
                )
        collectives = [s for s in stage.body if isinstance(s, Reduce | ScanStep | SortStep)]
        directions = {s.reverse for s in collectives if isinstance(s, ScanStep)}
        sorted_too = any(isinstance(s, SortStep) for s in collectives)
        if len(directions) > 1 or (sorted_too and len(collectives) > 1):
            return Diagnostic(
                SHAPE,
                "scans in both directions, or sorts beside other collectives, in one stage",
                where=f"kernel {kernel.name}",
                help="schedule them as separate stages",
            )
    return None


def tiling_refusal(tiled: TiledKernel, isa: Isa) -> Diagnostic | None:
    """Return why the kernel can't be written as it is tiled, or None."""
    why = unfit(tiled, isa.lanes)
    if why is None:
        return None
    return Diagnostic(
        TILING,
        f"C++ kernels do not take {why}",
        where=f"kernel {tiled.kernel.name}",
        help="tile it with `gyrator_codegen.passes.vector_pipeline`",
    )


def _types(kernel: Kernel) -> list[tuple[str, DType]]:
    found = [(b.name, b.dtype) for b in kernel.parameters]
    found += [(local.name, local.dtype) for local in kernel.locals]
    for stage in kernel.stages:
        found += [(s.name, s.dtype) for s in stage.body if isinstance(s, Let | Const | IndexValue)]
    return found
