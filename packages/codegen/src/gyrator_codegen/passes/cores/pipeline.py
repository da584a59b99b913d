"""The pipeline for cores with vector registers and threads."""

from gyrator_codegen.passes.cores.accesses.classify_accesses import ClassifyAccesses
from gyrator_codegen.passes.cores.accesses.clear_memory import ClearMemory
from gyrator_codegen.passes.cores.accesses.hoist_addresses import HoistAddresses
from gyrator_codegen.passes.cores.accesses.near_gathers import NearGathers
from gyrator_codegen.passes.cores.accesses.own_writes import OwnWrites
from gyrator_codegen.passes.cores.accesses.pair_accesses import PairAccesses
from gyrator_codegen.passes.cores.accesses.place_locals import PlaceLocals
from gyrator_codegen.passes.cores.accesses.prefetch_rows import PrefetchRows
from gyrator_codegen.passes.cores.accesses.transpose_loads import TransposeLoads
from gyrator_codegen.passes.cores.accesses.unmask_indices import UnmaskIndices
from gyrator_codegen.passes.cores.block_attention import BlockAttention
from gyrator_codegen.passes.cores.block_points import BlockPoints
from gyrator_codegen.passes.cores.cut_sections import CutSections
from gyrator_codegen.passes.cores.exact_casts import ExactCasts
from gyrator_codegen.passes.cores.exact_stores import ExactStores
from gyrator_codegen.passes.cores.hoist_values import HoistValues
from gyrator_codegen.passes.cores.map_products import MapProducts
from gyrator_codegen.passes.cores.move_bits import MoveBits
from gyrator_codegen.passes.cores.offer_choices import OfferChoices
from gyrator_codegen.passes.cores.pack_steps import PackSteps
from gyrator_codegen.passes.cores.plain_divisions import PlainDivisions
from gyrator_codegen.passes.cores.reductions.cascade_sums import CascadeSums
from gyrator_codegen.passes.cores.reductions.column_reductions import ColumnReductions
from gyrator_codegen.passes.cores.reductions.column_softmax import ColumnSoftmax
from gyrator_codegen.passes.cores.reductions.extreme_positions import ExtremePositions
from gyrator_codegen.passes.cores.reductions.hoist_from_rows import HoistFromRows
from gyrator_codegen.passes.cores.reductions.interleave_scans import InterleaveScans
from gyrator_codegen.passes.cores.reductions.reuse_exponentials import ReuseExponentials
from gyrator_codegen.passes.cores.reductions.two_pass_reductions import TwoPassReductions
from gyrator_codegen.passes.cores.reductions.unroll_reductions import UnrollReductions
from gyrator_codegen.passes.cores.round_in_stores import RoundInStores
from gyrator_codegen.passes.cores.share_threads import ShareThreads
from gyrator_codegen.passes.cores.split_copies import SplitCopies
from gyrator_codegen.passes.cores.unroll_parts import UnrollParts
from gyrator_codegen.passes.cores.unroll_periods import UnrollPeriods
from gyrator_codegen.passes.cores.vectorize import LANES_GUESS, Vectorize
from gyrator_codegen.passes.merge_repeats import MergeRepeats
from gyrator_codegen.passes.narrow_integers import NarrowIntegers
from gyrator_codegen.passes.nonempty_rows import NonemptyRows
from gyrator_codegen.passes.settle_conditions import SettleConditions
from gyrator_ir.passes import Pass
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram

_AVX512_LANES = 16
_TALL, _TALL_IN_1_MIB = 96, 256
"""Rows of a packed block of a product, for the L2 cache; processors with AVX-512 have at least
1 MiB of it for a core."""


def vector_pipeline(target: Target, lanes: int) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for cores with vector registers and threads, in order.

    Args:
        target: the target.
        lanes: 32-bit elements of a vector register; 1 to leave vectorisation to the compiler.
    """
    numbers = target.heuristics
    cores = numbers.cores
    compared = lanes if lanes > 1 else LANES_GUESS
    return (
        MergeRepeats(),
        MoveBits(),
        UnrollPeriods(compared),
        UnrollParts(compared),
        InterleaveScans(cores, compared),
        SettleConditions(),
        NarrowIntegers(),
        UnmaskIndices(),
        Vectorize(lanes),
        ColumnReductions(cores),
        TransposeLoads(),
        BlockPoints(cores),
        ColumnSoftmax(),
        TwoPassReductions(),
        ReuseExponentials(),
        ExtremePositions(),
        UnrollReductions(),
        CascadeSums(),
        PrefetchRows(),
        ClearMemory(),
        ShareThreads(cores, numbers.parallel_grain),
        OwnWrites(cores),
        PlaceLocals(),
        NonemptyRows(symbolic=False),
        HoistFromRows(),
        HoistValues(),
        ExactCasts(),
        ExactStores(),
        RoundInStores(),
        ClassifyAccesses(),
        NearGathers(),
        PairAccesses(),
        CutSections(),
        SplitCopies(),
        HoistAddresses(),
        OfferChoices(),
        PackSteps(),
        MapProducts(lanes, cores, tall=_TALL_IN_1_MIB if lanes == _AVX512_LANES else _TALL),
        PlainDivisions(),
        BlockAttention(),
    )
