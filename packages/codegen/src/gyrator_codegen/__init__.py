"""What kernel emitters share: tiling, masks, index text and a writer with a source map."""

from gyrator_codegen.analysis import (
    element_types,
    extent_guess,
    invariant,
    linear_position,
    static,
)
from gyrator_codegen.lanes import LaneAccess, lane_access, lane_slope, split_terms
from gyrator_codegen.language import (
    TilingLanguage,
    batched,
    index_check,
    index_checks,
    sources_with_repeats,
)
from gyrator_codegen.nests import Nest, axis_of, nest, steps, vector_refusal
from gyrator_codegen.reductions import REDUCTION_OF
from gyrator_codegen.rounding import round_to
from gyrator_codegen.stage import tile
from gyrator_codegen.writer import Names, Writer, write_origins

__all__ = [
    "REDUCTION_OF",
    "LaneAccess",
    "Names",
    "Nest",
    "TilingLanguage",
    "Writer",
    "axis_of",
    "batched",
    "element_types",
    "extent_guess",
    "index_check",
    "index_checks",
    "invariant",
    "lane_access",
    "lane_slope",
    "linear_position",
    "nest",
    "round_to",
    "sources_with_repeats",
    "split_terms",
    "static",
    "steps",
    "tile",
    "vector_refusal",
    "write_origins",
]
