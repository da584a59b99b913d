"""Tile IR passes: each makes one kind of decision. The pipelines of two kinds of machines."""

from collections.abc import Callable

from gyrator_codegen.passes.choose_blocks import ChooseBlocks
from gyrator_codegen.passes.index_width import IndexWidth
from gyrator_codegen.passes.map_contraction import MapContraction
from gyrator_codegen.passes.pipeline_loads import PipelineLoads
from gyrator_codegen.passes.rank_configurations import RankConfigurations
from gyrator_codegen.passes.replicate_loads import ReplicateLoads
from gyrator_codegen.passes.tile_transposes import TileTransposes
from gyrator_ir.passes import Pass
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram


def vector_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for cores with vector registers and threads, in order."""
    return ()


def block_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for devices that run blocks of elements as programs, in order."""
    can, numbers = target.capabilities, target.heuristics
    return (
        MapContraction(can.matrix_units),
        TileTransposes(),
        ChooseBlocks(numbers.scratch_bytes),
        IndexWidth(),
        PipelineLoads(),
        ReplicateLoads(),
        RankConfigurations(numbers.cores, numbers.shared_bytes, can.tf32),
    )


def all_passes() -> dict[str, Callable[..., Pass[TileProgram]]]:
    """Return the passes of this package by name, for building pipelines from text."""
    classes: tuple[type[Pass[TileProgram]], ...] = (
        ChooseBlocks,
        IndexWidth,
        MapContraction,
        PipelineLoads,
        RankConfigurations,
        ReplicateLoads,
        TileTransposes,
    )
    return {c.name: c for c in classes}
