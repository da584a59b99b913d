"""What kernel emitters share: tiling, masks, index text and a writer with a source map."""

from gyrator_codegen.lanes import Access, LaneAccess, lane_access, lane_slope, split_terms
from gyrator_codegen.vectorize import VectorAxis, choose_vector_axis, extent_guess
from gyrator_codegen.writer import Names, Writer

__all__ = [
    "Access",
    "LaneAccess",
    "Names",
    "VectorAxis",
    "Writer",
    "choose_vector_axis",
    "extent_guess",
    "lane_access",
    "lane_slope",
    "split_terms",
]
