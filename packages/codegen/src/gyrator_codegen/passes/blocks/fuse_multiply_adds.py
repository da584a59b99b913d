"""`fuse-multiply-adds`: let products round together with the sums of dot reductions.

A fused multiply-add is one instruction instead of two. The products of 16-bit floats are exact in
`f32`, so that their sums stay the same; those of wider floats lose one rounding each.
"""

from collections.abc import Iterable
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Let, Reduce, ReduceKind, ScanStep
from gyrator_ir.body.rewrite import AnyStatement
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.modes import EXACT_NUMERICS
from gyrator_ir.tile.nodes import Method, TiledKernel
from gyrator_ir.types import DType

_SUMS = frozenset(("add", "sub"))
_PASSING = frozenset(("cast", "neg", "where"))
"""Ops whose result may be a product that is not rounded yet, or its negation."""
_SINGLE = frozenset(
    "abs div eq exp fma fmax fmin ge gt le lt maximum minimum ne rsqrt sigmoid sqrt tanh".split()
)
"""Further ops that languages do not write as a product and a sum."""
_FOLDS = frozenset((ReduceKind.DOT, ReduceKind.MIN, ReduceKind.MAX))
"""Reductions that add up no products but those of a dot."""


@frozen
class FuseMultiplyAdds(KernelPass):
    """Fuse the products of dot reductions with their sums.

    Kernel compilers fuse all products of a kernel or none, so kernels that add up other products,
    each of which rounds, are not changed. Neither are those whose numerics guarantee exact bits.
    """

    name: ClassVar[str] = "fuse-multiply-adds"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.numerics in EXACT_NUMERICS or _adds_products(kernel.statements):
            return tiled
        folds = (s for s in kernel.statements if isinstance(s, Reduce))
        fused = tuple(
            evolve(r, fused=True)
            if s.kind is ReduceKind.DOT and s.dtype.is_float and r.method is not Method.MATRIX
            else r
            for s, r in zip(folds, tiled.reductions, strict=True)
        )
        return tiled if fused == tiled.reductions else evolve(tiled, reductions=fused)


def _adds_products(body: Iterable[AnyStatement]) -> bool:
    """Return whether something but a dot reduction may add up floating-point products."""
    products: set[str] = set()
    for s in body:
        if isinstance(s, ScanStep) or (isinstance(s, Reduce) and s.kind not in _FOLDS):
            return True
        if not isinstance(s, Let) or not s.dtype.is_float:
            continue
        of_product = not products.isdisjoint(s.args)
        if s.op == "mul" or (s.op in _PASSING and of_product and s.dtype.size >= DType.F32.size):
            products.add(s.name)
        elif of_product if s.op in _SUMS else s.op not in _PASSING | _SINGLE:
            return True
    return False
