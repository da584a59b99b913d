"""What the C++ kernel language can't express, said before anything is written."""

from collections.abc import Iterator

from gyrator_codegen import unfit
from gyrator_codegen.refusals import Refusals
from gyrator_codegen_cpp.dtypes import STORAGE
from gyrator_codegen_cpp.ops import EMITTERS
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.body.nodes import Reduce, ScanStep, SortStep
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

_COLLECTIVES = (Reduce, ScanStep, SortStep)


def refusal(kernel: Kernel, target: Target) -> Diagnostic | None:
    """Return why the kernel can't be written, or None."""
    return next(_refusals(kernel, target), None)


def _refusals(kernel: Kernel, target: Target) -> Iterator[Diagnostic]:
    why = Refusals(kernel, "C++")
    yield from why.types(DTYPE, STORAGE)
    yield from why.ops(OPERATION, EMITTERS.keys() - target.capabilities.ops_lacking)
    for stage in kernel.stages:
        directions = {s.reverse for s in stage.body if isinstance(s, ScanStep)}
        collectives = [isinstance(s, SortStep) for s in stage.body if isinstance(s, _COLLECTIVES)]
        if len(directions) > 1 or (any(collectives) and len(collectives) > 1):
            said = "scans in both directions, or sorts beside other collectives, in one stage"
            yield why.of(SHAPE, said, help="schedule them as separate stages")


def tiling_refusal(tiled: TiledKernel, isa: Isa) -> Diagnostic | None:
    """Return why the kernel can't be written as it is tiled, or None."""
    why = unfit(tiled, isa.lanes)
    help = "tile it with `gyrator_codegen.passes.vector_pipeline`"
    return None if why is None else _not_taken(why, tiled.kernel.name, help)


def no_templates(tiled: TiledTemplate) -> Diagnostic:
    """Return why a template's kernel can't be written."""
    help = "offer the template in `Capabilities.templates` of no target in C++"
    return _not_taken("templates", tiled.kernel.name, help)


def _not_taken(what: str, kernel: str, help: str) -> Diagnostic:
    said = f"C++ kernels do not take {what}"
    return Diagnostic(TILING, said, where=f"kernel {kernel}", help=help)
