"""What kernel emitters share: tiling, masks, index text and a writer with a source map."""

from gyrator_codegen.analysis import extent_guess, static
from gyrator_codegen.lanes import lane_access, lane_slope, split_terms
from gyrator_codegen.language import (
    TilingLanguage,
    batched,
    index_check,
    index_checks,
    sources_with_repeats,
)
from gyrator_codegen.nests import nest, vector_refusal
from gyrator_codegen.reductions import REDUCTION_OF
from gyrator_codegen.stage import tile
from gyrator_codegen.writer import Names, Writer, write_origins

__all__ = [
    "REDUCTION_OF", "Names", "TilingLanguage", "Writer", "batched", "extent_guess", "index_check",
    "index_checks", "lane_access", "lane_slope", "nest", "sources_with_repeats", "split_terms",
    "static", "tile", "vector_refusal", "write_origins",
]  # fmt: skip
