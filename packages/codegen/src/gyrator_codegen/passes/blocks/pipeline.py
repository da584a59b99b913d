"""The pipeline for devices whose programs process blocks of elements."""

from gyrator_codegen.passes.blocks.accesses.early_loads import EarlyLoads
from gyrator_codegen.passes.blocks.accesses.pair_points import PairPoints
from gyrator_codegen.passes.blocks.accesses.place_barriers import PlaceBarriers
from gyrator_codegen.passes.blocks.accesses.replicate_loads import ReplicateLoads
from gyrator_codegen.passes.blocks.accesses.reuse_loads import ReuseLoads
from gyrator_codegen.passes.blocks.accesses.stream_loads import StreamLoads
from gyrator_codegen.passes.blocks.arithmetic.approximate_functions import ApproximateFunctions
from gyrator_codegen.passes.blocks.arithmetic.fuse_multiply_adds import FuseMultiplyAdds
from gyrator_codegen.passes.blocks.arithmetic.share_reciprocals import ShareReciprocals
from gyrator_codegen.passes.blocks.choose_blocks import ChooseBlocks
from gyrator_codegen.passes.blocks.draw_fours import DrawFours
from gyrator_codegen.passes.blocks.flatten_indices import FlattenIndices
from gyrator_codegen.passes.blocks.group_exponentials import GroupExponentials
from gyrator_codegen.passes.blocks.index_width import IndexWidth
from gyrator_codegen.passes.blocks.launches.keep_programs import KeepPrograms
from gyrator_codegen.passes.blocks.launches.match_candidates import MatchCandidates
from gyrator_codegen.passes.blocks.launches.overlap_launches import OverlapLaunches
from gyrator_codegen.passes.blocks.map_contraction import MapContraction
from gyrator_codegen.passes.blocks.pack_sorts import PackSorts
from gyrator_codegen.passes.blocks.pipeline_loads import PipelineLoads
from gyrator_codegen.passes.blocks.rank_configurations import RankConfigurations
from gyrator_codegen.passes.blocks.rank_templates import RankTemplates
from gyrator_codegen.passes.blocks.tile_rows import TileRows
from gyrator_codegen.passes.blocks.tile_transposes import TileTransposes
from gyrator_codegen.passes.cores.unroll_periods import UnrollPeriods
from gyrator_codegen.passes.narrow_integers import NarrowIntegers
from gyrator_codegen.passes.nonempty_rows import NonemptyRows
from gyrator_codegen.passes.settle_conditions import SettleConditions
from gyrator_ir.passes import Pass
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram


def block_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for devices whose programs process blocks of elements, in order."""
    can, numbers = target.capabilities, target.heuristics
    return (
        UnrollPeriods(pairs=True),
        SettleConditions(),
        NarrowIntegers(),
        MapContraction(can.matrix_units, can.tf32),
        TileTransposes(),
        TileRows(),
        ChooseBlocks(numbers.scratch_bytes),
        GroupExponentials(),
        IndexWidth(),
        PipelineLoads(shared_bytes=numbers.shared_bytes),
        ReplicateLoads(),
        NonemptyRows(),
        FlattenIndices(),
        PairPoints(),
        EarlyLoads(numbers.cores),
        StreamLoads(),
        OverlapLaunches(),
        DrawFours(),
        PackSorts(),
        ReuseLoads(),
        PlaceBarriers(),
        ApproximateFunctions(),
        ShareReciprocals(),
        FuseMultiplyAdds(),
        RankConfigurations(numbers.cores, numbers.shared_bytes),
        MatchCandidates(),
        KeepPrograms(numbers.cores),
        RankTemplates(numbers.cores, numbers.shared_bytes),
    )
