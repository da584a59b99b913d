"""Tile IR passes: each makes one kind of decision. The pipelines of two kinds of machines."""

from collections.abc import Callable

from gyrator_codegen.passes.block_points import BlockPoints
from gyrator_codegen.passes.cascade_sums import CascadeSums
from gyrator_codegen.passes.choose_blocks import ChooseBlocks
from gyrator_codegen.passes.clear_memory import ClearMemory
from gyrator_codegen.passes.column_reductions import ColumnReductions
from gyrator_codegen.passes.index_width import IndexWidth
from gyrator_codegen.passes.map_contraction import MapContraction
from gyrator_codegen.passes.merge_repeats import MergeRepeats
from gyrator_codegen.passes.own_writes import OwnWrites
from gyrator_codegen.passes.pipeline_loads import PipelineLoads
from gyrator_codegen.passes.prefetch_rows import PrefetchRows
from gyrator_codegen.passes.rank_configurations import RankConfigurations
from gyrator_codegen.passes.replicate_loads import ReplicateLoads
from gyrator_codegen.passes.reuse_exponentials import ReuseExponentials
from gyrator_codegen.passes.share_threads import ShareThreads
from gyrator_codegen.passes.tile_transposes import TileTransposes
from gyrator_codegen.passes.transpose_loads import TransposeLoads
from gyrator_codegen.passes.two_pass_reductions import TwoPassReductions
from gyrator_codegen.passes.unroll_reductions import UnrollReductions
from gyrator_codegen.passes.vectorize import Vectorize
from gyrator_ir.levels import TILE
from gyrator_ir.passes import Pass, Pipeline
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.tile.nodes import TileProgram


def vector_pipeline(target: Target, lanes: int) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for cores with vector registers and threads, in order.

    Args:
        lanes: 32-bit elements of a vector register; 1 where the compiler vectorises by itself.
    """
    numbers = target.heuristics
    cores = numbers.cores
    return (
        MergeRepeats(),
        Vectorize(lanes),
        ColumnReductions(cores),
        TransposeLoads(),
        BlockPoints(cores),
        TwoPassReductions(),
        ReuseExponentials(),
        UnrollReductions(),
        CascadeSums(),
        PrefetchRows(),
        ClearMemory(),
        ShareThreads(cores, numbers.parallel_grain),
        OwnWrites(cores),
    )


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


def every_pass() -> Pipeline[TileProgram]:
    """Return the passes of all kinds of machines: what a user's edits may name."""
    target = Target(
        device="any", arch="", kernel_backend="", capabilities=Capabilities(dtypes=frozenset())
    )
    return Pipeline(TILE, (*vector_pipeline(target, 1), *block_pipeline(target)))


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
        BlockPoints,
        CascadeSums,
        ClearMemory,
        ColumnReductions,
        MergeRepeats,
        OwnWrites,
        PrefetchRows,
        ReuseExponentials,
        ShareThreads,
        TransposeLoads,
        TwoPassReductions,
        UnrollReductions,
        Vectorize,
    )
    return {c.name: c for c in classes}
