"""`cascade-sums`: long sums of floats are made of short ones, added in a wider type.

So the error of a sum does not grow with its length. Sums that must be in order are not cut, but are
in the wider type from the first value on.
"""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.analysis import in_order, static
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass, Reduced, each_stage
from gyrator_ir.body.nodes import Reduce, ReduceKind
from gyrator_ir.expr import Const, ShapeFacts
from gyrator_ir.kernel.nodes import Stage
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Reduction, TiledKernel

_ENDLESS = 1 << 20  # what an extent is taken for that is not known


@frozen
class CascadeSums(KernelPass):
    """Give chains to sums of floats, and blocks of such chains to long loops."""

    chain: int = 64
    """Values that an accumulator takes."""
    rows: int = 32
    """The same where rows are added to a strip of points, whose accumulators lie in memory."""

    name: ClassVar[str] = "cascade-sums"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled) if tiled.reductions else None
        if loops is None:
            return tiled
        if in_order(kernel):
            return _wide(tiled)
        size = 1
        for a in kernel.inner:
            size *= a.extent.value if isinstance(a.extent, Const) else _ENDLESS
        last = kernel.inner[-1] if loops.across else loops.axis
        extent = static(last.extent)

        def cascaded(stage: Stage, here: Reduced) -> list[Reduction]:
            if loops.columns:
                chain, block = self.rows, 0
                short = size <= chain
            else:
                chain = self.chain
                taken = chain * settled(here[0][1].unroll) * (1 if loops.across else loops.lanes)
                short = size <= 2 * taken
                kept = max(settled(r.block) for _, r in here)
                block = kept or (taken if extent is None or extent > 2 * taken else 0)
            return [
                r if short or not _sums(s) else evolve(r, chain=chain, block=block) for s, r in here
            ]

        return each_stage(tiled, cascaded)


def _wide(tiled: TiledKernel) -> TiledKernel:
    reduces = (s for stage in tiled.kernel.stages for s in stage.body if isinstance(s, Reduce))
    pairs = zip(tiled.reductions, reduces, strict=True)
    return evolve(tiled, reductions=tuple(evolve(r, wide=_sums(s)) for r, s in pairs))


def _sums(s: Reduce) -> bool:
    return s.kind in (ReduceKind.SUM, ReduceKind.DOT) and s.dtype.is_float
