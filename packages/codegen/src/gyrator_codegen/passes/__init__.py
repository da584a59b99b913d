"""Tile IR passes: each makes one kind of decision. The pipelines of two kinds of machines."""

from collections.abc import Callable

from gyrator_ir.passes import Pass
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram


def vector_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for cores with vector registers and threads, in order."""
    return ()


def block_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for devices that run blocks of elements as programs, in order."""
    return ()


def all_passes() -> dict[str, Callable[..., Pass[TileProgram]]]:
    """Return the passes of this package by name, for building pipelines from text."""
    classes: tuple[type[Pass[TileProgram]], ...] = ()
    return {c.name: c for c in classes}
