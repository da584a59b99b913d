"""Kernels in, kernels with all decisions about the machine out."""

from collections.abc import Sequence

from gyrator_ir.checks import takes
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Launchable
from gyrator_ir.levels import TILE
from gyrator_ir.passes import NO_EDITS, Pass, PassEdits, Pipeline, Tracer
from gyrator_ir.provenance import Origin
from gyrator_ir.tile.nodes import TileProgram
from gyrator_ir.tile.plain import untiled


def tile(
    kernels: Sequence[Launchable],
    facts: ShapeFacts,
    passes: Sequence[Pass[TileProgram]],
    origins: Sequence[Origin] = (),
    edits: PassEdits = NO_EDITS,
    tracer: Tracer | None = None,
) -> TileProgram:
    """Return the kernels as a language prints them: from plain loops, by the passes in order.

    Args:
        edits: what a user changes of the passes.

    Raises:
        InputError: GY-STAGE-001, for arguments of other types.
    """
    takes("tile", kernels, Sequence)
    for kernel in kernels:
        takes("tile", kernel, Launchable)
    takes("tile", facts, ShapeFacts)
    program = TileProgram("kernels", tuple(map(untiled, kernels)), facts, tuple(origins))
    return edits.apply(Pipeline(TILE, tuple(passes), "never")).run(program, tracer)
