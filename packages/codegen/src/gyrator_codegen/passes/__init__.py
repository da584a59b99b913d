"""Tile IR passes: each makes one kind of decision. The pipelines of three kinds of machines."""

from collections.abc import Callable

from gyrator_codegen.passes.bind_choices import BindChoices
from gyrator_codegen.passes.blocks.accesses.early_loads import EarlyLoads
from gyrator_codegen.passes.blocks.accesses.pair_points import PairPoints
from gyrator_codegen.passes.blocks.accesses.place_barriers import PlaceBarriers
from gyrator_codegen.passes.blocks.accesses.replicate_loads import ReplicateLoads
from gyrator_codegen.passes.blocks.accesses.reuse_loads import ReuseLoads
from gyrator_codegen.passes.blocks.approximate_quotients import ApproximateQuotients
from gyrator_codegen.passes.blocks.choose_blocks import ChooseBlocks
from gyrator_codegen.passes.blocks.draw_fours import DrawFours
from gyrator_codegen.passes.blocks.flatten_indices import FlattenIndices
from gyrator_codegen.passes.blocks.index_width import IndexWidth
from gyrator_codegen.passes.blocks.keep_programs import KeepPrograms
from gyrator_codegen.passes.blocks.map_contraction import MapContraction
from gyrator_codegen.passes.blocks.narrow_integers import NarrowIntegers
from gyrator_codegen.passes.blocks.pipeline_loads import PipelineLoads
from gyrator_codegen.passes.blocks.rank_configurations import RankConfigurations
from gyrator_codegen.passes.blocks.settle_conditions import SettleConditions
from gyrator_codegen.passes.blocks.tile_rows import TileRows
from gyrator_codegen.passes.blocks.tile_transposes import TileTransposes
from gyrator_codegen.passes.cores.accesses.classify_accesses import ClassifyAccesses
from gyrator_codegen.passes.cores.accesses.clear_memory import ClearMemory
from gyrator_codegen.passes.cores.accesses.hoist_addresses import HoistAddresses
from gyrator_codegen.passes.cores.accesses.own_writes import OwnWrites
from gyrator_codegen.passes.cores.accesses.pair_accesses import PairAccesses
from gyrator_codegen.passes.cores.accesses.place_locals import PlaceLocals
from gyrator_codegen.passes.cores.accesses.prefetch_rows import PrefetchRows
from gyrator_codegen.passes.cores.accesses.transpose_loads import TransposeLoads
from gyrator_codegen.passes.cores.block_points import BlockPoints
from gyrator_codegen.passes.cores.exact_casts import ExactCasts
from gyrator_codegen.passes.cores.hoist_values import HoistValues
from gyrator_codegen.passes.cores.offer_choices import OfferChoices
from gyrator_codegen.passes.cores.plain_divisions import PlainDivisions
from gyrator_codegen.passes.cores.reductions.cascade_sums import CascadeSums
from gyrator_codegen.passes.cores.reductions.column_reductions import ColumnReductions
from gyrator_codegen.passes.cores.reductions.reuse_exponentials import ReuseExponentials
from gyrator_codegen.passes.cores.reductions.two_pass_reductions import TwoPassReductions
from gyrator_codegen.passes.cores.reductions.unroll_reductions import UnrollReductions
from gyrator_codegen.passes.cores.round_in_stores import RoundInStores
from gyrator_codegen.passes.cores.share_threads import ShareThreads
from gyrator_codegen.passes.cores.unroll_periods import UnrollPeriods
from gyrator_codegen.passes.cores.vectorize import LANES_GUESS, Vectorize
from gyrator_codegen.passes.merge_repeats import MergeRepeats
from gyrator_codegen.passes.nonempty_rows import NonemptyRows
from gyrator_codegen.passes.threads.map_threads import MapThreads
from gyrator_ir.levels import TILE
from gyrator_ir.passes import Pass, Pipeline
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.tile.nodes import TileProgram

__all__ = ["block_pipeline", "thread_pipeline", "vector_pipeline"]


def vector_pipeline(target: Target, lanes: int) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for cores with vector registers and threads, in order.

    Args:
        lanes: 32-bit elements of a vector register; 1 where the compiler vectorises by itself.
    """
    numbers = target.heuristics
    cores = numbers.cores
    return (
        MergeRepeats(),
        UnrollPeriods(lanes if lanes > 1 else LANES_GUESS),
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
        PlaceLocals(),
        NonemptyRows(symbolic=False),
        HoistValues(),
        ExactCasts(),
        RoundInStores(),
        ClassifyAccesses(),
        PairAccesses(),
        HoistAddresses(),
        OfferChoices(),
        PlainDivisions(),
    )


def block_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for devices that run blocks of elements as programs, in order."""
    can, numbers = target.capabilities, target.heuristics
    return (
        UnrollPeriods(pairs=True),
        SettleConditions(),
        NarrowIntegers(),
        MapContraction(can.matrix_units),
        TileTransposes(),
        TileRows(),
        ChooseBlocks(numbers.scratch_bytes),
        IndexWidth(),
        PipelineLoads(),
        ReplicateLoads(),
        NonemptyRows(),
        FlattenIndices(),
        PairPoints(),
        EarlyLoads(),
        DrawFours(),
        ReuseLoads(),
        PlaceBarriers(),
        ApproximateQuotients(),
        RankConfigurations(numbers.cores, numbers.shared_bytes, can.tf32),
        KeepPrograms(numbers.cores),
    )


def thread_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for devices that run a thread for each element, in order."""
    return (MergeRepeats(), MapThreads(), IndexWidth(), PlainDivisions())


def every_pass() -> Pipeline[TileProgram]:
    """Return the passes of all kinds of machines: what a user's edits may name."""
    target = Target(
        device="any", arch="", kernel_backend="", capabilities=Capabilities(dtypes=frozenset())
    )
    pipelines = (*vector_pipeline(target, 1), *block_pipeline(target), *thread_pipeline(target))
    return Pipeline(TILE, tuple({one.name: one for one in pipelines}.values()))


def all_passes() -> dict[str, Callable[..., Pass[TileProgram]]]:
    """Return the passes of this package by name, for building pipelines from text."""
    named: dict[str, Callable[..., Pass[TileProgram]]] = {BindChoices.name: BindChoices}
    return named | {name: type(one) for name, one in every_pass().table.items()}
