"""`accurate-sums`: accumulate floating-point sums in `f64`, and compensate those of `f64`."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Reduce, ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import Reduction, TiledKernel
from gyrator_ir.types import DType

_SUMS = (ReduceKind.SUM, ReduceKind.DOT)
_SECOND_SUMS = (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX)
"""Reductions that sum in a second pass, in `f64`."""


@frozen
class AccurateSums(KernelPass):
    """Choose accumulators for sums of floats that one thread takes in any order, so that their
    errors do not grow with the number of elements: `f64` for narrower floats, and the errors of the
    additions for `f64`."""

    name: ClassVar[str] = "accurate-sums"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        if not tiled.reductions:
            return tiled
        reduces = (s for s in tiled.kernel.statements if isinstance(s, Reduce))
        pairs = zip(tiled.reductions, reduces, strict=True)
        return evolve(tiled, reductions=tuple(_accurate(r, s) for r, s in pairs))


def _accurate(r: Reduction, s: Reduce) -> Reduction:
    if not s.dtype.is_float or s.kind not in (*_SUMS, *_SECOND_SUMS):
        return r
    if s.dtype is DType.F64:
        return evolve(r, compensated=True)
    return evolve(r, wide=True) if s.kind in _SUMS else r
