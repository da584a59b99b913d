"""`pair-accesses`: combine accesses of interleaved elements, with lane stride 2.

Real and imaginary parts of complex numbers are interleaved: two vectors cover the memory of both,
and are shuffled in registers.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.pairs import pairs_of
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, ShapeFacts
from gyrator_ir.tile.nodes import Pair, TiledKernel
from gyrator_ir.types import DType

_UNPAIRED = frozenset(d for d in DType if d.is_narrow_float and d.size == 1)
"""Floats that are converted when they are loaded into vectors."""


@frozen
class PairAccesses(KernelPass):
    """Record pairs of strided accesses that can be combined. This pass runs after
    `classify-accesses`."""

    name: ClassVar[str] = "pair-accesses"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        strided = {a.index for a in tiled.accesses if a.stride is Const(2)}
        if not strided or tiled.transposed:
            return tiled
        buffers = {
            b.name
            for b in tiled.kernel.parameters
            if not b.dtype.is_complex and b.dtype not in _UNPAIRED
        }
        pairs = [
            Pair(number, first, second)
            for number, stage in enumerate(tiled.kernel.stages)
            for first, second in pairs_of(stage.body, strided, buffers)
        ]
        return evolve(tiled, pairs=tuple(pairs)) if pairs else tiled
