"""Kernels in, kernels with all decisions about the machine out."""

from collections.abc import Callable, Sequence

from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.passes import Pass, Step, ignore
from gyrator_ir.provenance import Origin
from gyrator_ir.tile.nodes import TileProgram
from gyrator_ir.tile.plain import untiled


def tile(
    kernels: Sequence[Kernel | KernelGroup],
    facts: ShapeFacts,
    passes: Sequence[Pass[TileProgram]],
    origins: Sequence[Origin] = (),
    name: str = "kernels",
    trace: Callable[[Step], None] = ignore,
) -> TileProgram:
    """Return the kernels as a language prints them: from plain loops, by the passes in order."""
    program = TileProgram(name, tuple(map(untiled, kernels)), facts, tuple(origins))
    for p in passes:
        before, program = program, p.run(program)
        trace(Step(p.name, before, program))
    return program
