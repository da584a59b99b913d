"""Tile IR passes: each makes one kind of decision. The pipelines of two kinds of machines."""

from gyrator_ir.passes import Pass
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram


def vector_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for cores with vector registers and threads, in order."""
    return ()


def block_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for devices that run blocks of elements as programs, in order."""
    return ()
