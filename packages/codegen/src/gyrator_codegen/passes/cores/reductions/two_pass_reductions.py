"""`two-pass-reductions`: mean and deviation, and softmax's maximum and sum, a block at a time.

The first pass keeps the block's elements in fast memory, so that the second neither computes nor
loads them again. Blocks merge by Chan, Golub and LeVeque's formula, or by rescaling to the greater
maximum (Milakov and Gimelshein).
"""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.analysis import static
from gyrator_codegen.lanes import lane_slope
from gyrator_codegen.nests import Nest, nest
from gyrator_codegen.passes.rewriting import KernelPass, each_stage
from gyrator_ir.body.nodes import Bind, Load, Reduce, ReduceKind, Store
from gyrator_ir.expr import ONE, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Stage
from gyrator_ir.tile.nodes import Method, Reduction, TiledKernel

_KINDS = (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX)


@frozen
class TwoPassReductions(KernelPass):
    """Give two passes to the reductions of rows that need a first result for a second."""

    block: int = 2048
    """Elements of a row that are kept between the passes."""

    name: ClassVar[str] = "two-pass-reductions"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        if not tiled.reductions:
            return tiled
        loops = nest(tiled)
        if loops is None or loops.across or loops.lanes == 1:
            return tiled
        last = static(loops.axis.extent)
        block = self.block if last is None else max(min(self.block, last), 1)

        def blocked(stage: Stage, s: Reduce, r: Reduction) -> Reduction:
            if s.kind not in _KINDS:
                return r
            reload = _loaded_again(tiled.kernel, stage, s, loops)
            return evolve(r, method=Method.TWO_PASS, block=block, reload=reload)

        return each_stage(tiled, lambda stage, here: [blocked(stage, s, r) for s, r in here])


def _loaded_again(kernel: Kernel, stage: Stage, reduce: Reduce, loops: Nest) -> bool:
    """Say whether memory is as good for the second pass as a copy of it: what is reduced is just
    loaded, as vectors, in its own type, from a place known before the first pass, and nothing is
    stored between the passes."""
    if any(isinstance(s, Store) for s in stage.body):
        return False
    types = kernel.storage
    bound = {s.symbol for s in stage.body if isinstance(s, Bind)}
    return any(
        isinstance(s, Load)
        and s.name == reduce.args[0]
        and s.mask is None
        and types[s.buffer] is reduce.dtype
        and s.index.free_symbols.isdisjoint(bound)
        and lane_slope(s.index, loops.symbol, loops.lanes) is ONE
        for s in stage.body
    )
