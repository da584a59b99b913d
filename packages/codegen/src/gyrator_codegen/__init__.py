"""What kernel emitters share: tiling, masks, index text and a writer with a source map."""

from gyrator_codegen.analysis import extent_guess, invariant, kernel_facts, static
from gyrator_codegen.batches import balanced
from gyrator_codegen.lanes import Access, LaneAccess, lane_access, lane_slope, split_terms
from gyrator_codegen.nests import Nest, axis_of, nest, steps, unfit
from gyrator_codegen.reductions import identity
from gyrator_codegen.stage import tile
from gyrator_codegen.writer import Names, Writer

__all__ = [
    "Access",
    "LaneAccess",
    "Names",
    "Nest",
    "Writer",
    "axis_of",
    "balanced",
    "extent_guess",
    "identity",
    "invariant",
    "kernel_facts",
    "lane_access",
    "lane_slope",
    "nest",
    "split_terms",
    "static",
    "steps",
    "tile",
    "unfit",
]
