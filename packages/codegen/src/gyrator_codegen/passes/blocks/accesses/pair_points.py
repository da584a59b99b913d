"""`pair-points`: combine accesses of interleaved elements, with stride 2 from point to point.

A block of twice as many elements covers both accesses, so that whole vectors are loaded and stored,
and shuffled in registers.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.pairs import pairs_of
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import blocks_of, pair_offset
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import Pair, TiledKernel


@frozen
class PairPoints(KernelPass):
    """Record pairs of accesses at twice the linear index that can be combined. This pass runs after
    `flatten-indices`."""

    name: ClassVar[str] = "pair-points"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        if tiled.contraction is not None or blocks_of(tiled).second:
            return tiled
        twice = {f.index for f in tiled.forms if pair_offset(tiled, f.written) is not None}
        buffers = {b.name for b in tiled.kernel.parameters}
        pairs = tuple(
            Pair(number, first, second)
            for number, stage in enumerate(tiled.kernel.stages)
            for first, second in pairs_of(stage.body, twice, buffers)
        )
        return evolve(tiled, pairs=pairs) if pairs else tiled
