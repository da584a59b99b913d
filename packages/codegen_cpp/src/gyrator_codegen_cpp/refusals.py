"""What the C++ kernel language can't express, said before anything is written."""

from gyrator_codegen import element_types, unfit
from gyrator_codegen_cpp.dtypes import STORAGE
from gyrator_codegen_cpp.ops import EMITTERS
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.body.nodes import Let, Reduce, ScanStep, SortStep
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel, TiledTemplate

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
    for name, dtype in element_types(kernel):
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
    help = "tile it with `gyrator_codegen.passes.vector_pipeline`"
    return _not_taken(why, tiled.kernel.name, help)


def no_templates(tiled: TiledTemplate) -> Diagnostic:
    """Return why a template's kernel can't be written."""
    help = "offer the template in `Capabilities.templates` of no target in C++"
    return _not_taken("templates", tiled.kernel.name, help)


def _not_taken(what: str, kernel: str, help: str) -> Diagnostic:
    return Diagnostic(
        TILING, f"C++ kernels do not take {what}", where=f"kernel {kernel}", help=help
    )
