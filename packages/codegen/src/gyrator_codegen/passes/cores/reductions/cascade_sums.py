"""`cascade-sums`: compute long floating-point sums as short ones that are added in a wider type.

The error of a sum then does not grow with its length. In-order sums are not split. Those of
`Numerics.BATCH_INVARIANT` are accumulated in the wider type from the start, those of
`Numerics.BITWISE` in their own.
"""

from math import prod
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import in_order, static
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass, Reduced, each_stage
from gyrator_ir.body.nodes import Reduce, ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Stage
from gyrator_ir.modes import Numerics
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Reduction, TiledKernel

_ENDLESS = 1 << 20  # the estimate of an unknown extent


@frozen
class CascadeSums(KernelPass):
    """Split floating-point sums into chains, and long loops into blocks of one chain each."""

    chain: int = 64
    """Values per accumulator and chain."""
    rows: int = 32
    """The same for strips of points, whose accumulators are in memory."""

    name: ClassVar[str] = "cascade-sums"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled) if tiled.reductions else None
        if loops is None:
            return tiled
        if in_order(kernel):
            return _wide(tiled) if kernel.numerics is Numerics.BATCH_INVARIANT else tiled
        sizes = (static(a.extent) for a in kernel.inner)
        size = prod(_ENDLESS if n is None else n for n in sizes)
        last = kernel.inner[-1] if loops.across else loops.axis
        extent = static(last.extent)

        def cascaded(stage: Stage, reduced: Reduced) -> list[Reduction]:
            if loops.columns:
                chain, block = self.rows, 0
                short = size <= chain
            else:
                chain = self.chain
                lanes = 1 if loops.across else loops.lanes
                length = chain * settled(reduced[0][1].unroll) * lanes
                short = size <= 2 * length
                two_pass = max(settled(r.block) for _, r in reduced)
                block = two_pass or (length if extent is None or extent > 2 * length else 0)
            return [
                r if short or not _sums(s) else evolve(r, chain=chain, block=block)
                for s, r in reduced
            ]

        return each_stage(tiled, cascaded)


def _wide(tiled: TiledKernel) -> TiledKernel:
    reduces = (s for s in tiled.kernel.statements if isinstance(s, Reduce))
    pairs = zip(tiled.reductions, reduces, strict=True)
    return evolve(tiled, reductions=tuple(evolve(r, wide=_sums(s)) for r, s in pairs))


def _sums(s: Reduce) -> bool:
    return s.kind in (ReduceKind.SUM, ReduceKind.DOT) and s.dtype.is_float
