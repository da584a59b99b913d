"""`two-pass-reductions`: compute Welford and softmax reductions by two passes over each block.

The first pass stages the elements of a block in fast memory, so that the second need not recompute
or reload them. Blocks are merged by the formula of Chan, Golub and LeVeque, or by rescaling to the
greater maximum (Milakov and Gimelshein).
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import static
from gyrator_codegen.lanes import lane_slope
from gyrator_codegen.nests import Nest, nest
from gyrator_codegen.passes.rewriting import KernelPass, each_stage
from gyrator_ir.body.nodes import Bind, Load, Reduce, ReduceKind, Store
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Stage
from gyrator_ir.tile.nodes import Method, Reduction, TiledKernel

_KINDS = (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX)


@frozen
class TwoPassReductions(KernelPass):
    """Use two passes for reductions along rows with two dependent results."""

    block: int = 2048
    """Maximum number of elements per block."""

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

        return each_stage(tiled, lambda stage, reduced: [blocked(stage, s, r) for s, r in reduced])


def _loaded_again(kernel: Kernel, stage: Stage, reduce: Reduce, loops: Nest) -> bool:
    """Return whether the second pass can load from memory again instead of staging.

    This requires that the operand is a contiguous vector load without conversion, whose address is
    known before the first pass, and that nothing is stored between the passes.
    """
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
