"""`stream-loads`: let a matrix that is read once pass through the caches.

All programs of a matrix-vector product read the vector, and each element of the matrix is read
once. A matrix that stays in the caches evicts the vector.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Load, Reduce, ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class StreamLoads(KernelPass):
    """Stream the early loads of dot reductions along rows, if other loads are replicated.

    This pass runs after `replicate-loads` and `early-loads`.
    """

    name: ClassVar[str] = "stream-loads"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        if not tiled.replicated:
            return tiled
        body = tiled.kernel.statements
        if not any(isinstance(s, Reduce) and s.kind is ReduceKind.DOT for s in body):
            return tiled
        row = {a.symbol for a in tiled.kernel.inner}
        moving = set(tiled.early) - set(tiled.replicated)
        streamed = tuple(
            s.name
            for s in body
            if isinstance(s, Load) and s.name in moving and row & s.index.free_symbols
        )
        return evolve(tiled, streamed=streamed)
