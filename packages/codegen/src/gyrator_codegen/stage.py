"""The tiling stage: Kernel IR to Tile IR."""

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
    """Return the tiled kernels: scalar loops, transformed by the passes in order.

    Args:
        kernels: the kernels, groups and templates to tile.
        facts: facts about their sizes.
        passes: tile passes, such as `vector_pipeline(target, lanes)`.
        origins: the origins of the schedule, for diagnostics and comments.
        edits: edits of the passes by a user.
        tracer: records the passes.

    Raises:
        InputError: GY-STAGE-001, for arguments of the wrong type.
    """
    takes("tile", kernels, Sequence)
    for kernel in kernels:
        takes("tile", kernel, Launchable)
    takes("tile", facts, ShapeFacts)
    program = TileProgram("kernels", tuple(map(untiled, kernels)), facts, tuple(origins))
    return edits.apply(Pipeline(TILE, tuple(passes), "never")).run(program, tracer)
