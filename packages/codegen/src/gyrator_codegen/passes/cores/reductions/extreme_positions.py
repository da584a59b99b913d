"""`extreme-positions`: how reductions to positions of extremes accumulate."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass, Reduced, each_stage
from gyrator_ir.body.nodes import EXTREMES, POSITIONS, Reduce
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Stage
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Reduction, TiledKernel
from gyrator_ir.types import DType


@frozen
class ExtremePositions(KernelPass):
    """Take minima and maxima from the accumulators of their positions, if both are computed, and
    accumulate positions in `i32` if they fit beside values that are no wider."""

    name: ClassVar[str] = "extreme-positions"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        if not any(isinstance(s, Reduce) and s.kind in POSITIONS for s in tiled.kernel.statements):
            return tiled
        _, most = facts.bounds(extent_of(tiled.kernel.inner))
        fits = most is not None and most <= DType.I32.limits[1]

        def chosen(stage: Stage, reduced: Reduced) -> list[Reduction]:
            positions = {(EXTREMES[s.kind], s.args): r for s, r in reduced if s.kind in EXTREMES}
            return [
                evolve(
                    r,
                    narrow=fits and s.kind in POSITIONS and s.dtype.size <= DType.I32.size,
                    of=positions[s.kind, s.args].result if (s.kind, s.args) in positions else "",
                )
                for s, r in reduced
            ]

        return each_stage(tiled, chosen)
