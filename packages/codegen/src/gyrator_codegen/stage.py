"""Kernels in, kernels with all decisions about the machine out."""

from collections.abc import Sequence

from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.levels import TILE
from gyrator_ir.passes import Pass, Pipeline, Tracer
from gyrator_ir.provenance import Origin
from gyrator_ir.tile.nodes import TileProgram
from gyrator_ir.tile.plain import untiled


def tile(
    kernels: Sequence[Kernel | KernelGroup],
    facts: ShapeFacts,
    passes: Sequence[Pass[TileProgram]],
    origins: Sequence[Origin] = (),
    name: str = "kernels",
    tracer: Tracer | None = None,
) -> TileProgram:
    """Return the kernels as a language prints them: from plain loops, by the passes in order."""
    program = TileProgram(name, tuple(map(untiled, kernels)), facts, tuple(origins))
    return Pipeline(TILE, tuple(passes), "never").run(program, tracer)
