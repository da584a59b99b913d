"""`fuse-multiply-adds`: let products round together with the sums of dot reductions.

A fused multiply-add is one instruction instead of two. The products of 16-bit floats are exact in
`f32`, unless those of `bf16` overflow or vanish, so that their sums stay the same; those of wider
floats lose one rounding each.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Let, Load, Reduce, ReduceKind, ScanStep, Store
from gyrator_ir.body.rewrite import AnyStatement, defined, types_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.modes import EXACT_NUMERICS, StoreMode
from gyrator_ir.tile.nodes import Method, TiledKernel
from gyrator_ir.types import DType

_SUMS = frozenset(("add", "sub"))
_PASSING = frozenset(("cast", "neg", "where"))
"""Ops whose result may be a product that is not rounded yet, or its negation."""
_KNOWN = (
    _SUMS
    | _PASSING
    | frozenset("abs div exp fma fmax fmin maximum minimum mul rsqrt sigmoid sqrt tanh".split())
)
"""Ops that languages do not write as a product and a sum."""
_FOLDS = frozenset((ReduceKind.DOT, ReduceKind.SUM, ReduceKind.MIN, ReduceKind.MAX))
"""Reductions that languages do not write as a product and a sum, but for that of a dot."""
_LONG = (DType.F32, DType.F64)
_SHORT = (DType.BF16, DType.F16)


@frozen
class FuseMultiplyAdds(KernelPass):
    """Fuse the products of dot reductions with their sums.

    Kernel compilers fuse all products of a kernel or none, so kernels that add up other products
    are not changed, unless these are of 16-bit floats and do not round. Neither are those whose
    numerics guarantee exact bits.
    """

    name: ClassVar[str] = "fuse-multiply-adds"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        folds = (s for s in kernel.statements if isinstance(s, Reduce))
        fused = tuple(
            evolve(r, fused=True)
            if s.kind is ReduceKind.DOT and s.dtype.is_float and r.method is not Method.MATRIX
            else r
            for s, r in zip(folds, tiled.reductions, strict=True)
        )
        if fused == tiled.reductions or kernel.numerics in EXACT_NUMERICS or _adds_products(kernel):
            return tiled
        return evolve(tiled, reductions=fused)


def _adds_products(kernel: Kernel) -> bool:
    """Return whether something but a dot reduction may add up floating-point products that
    round."""
    types: dict[str, DType] = {}
    short: set[str] = set()
    """Values of at least 32 bits that a 16-bit float represents, so that products are exact."""
    products: set[str] = set()
    buffers: set[str] = set()
    """Those that products are stored to. A load of a local need not round what is stored."""
    for s in kernel.statements:
        added = s.op in _SUMS if isinstance(s, Let) else _is_sum(s)
        of_product = (
            s.value in products
            if isinstance(s, Store)
            else isinstance(s, Let | Reduce) and not products.isdisjoint(s.args)
        )
        if isinstance(s, ScanStep) or (added and of_product):
            return True
        if isinstance(s, Reduce) and s.kind not in _FOLDS:
            return True
        rounds = isinstance(s, Let) and s.op == "mul" and not short.issuperset(s.args)
        if isinstance(s, Let) and s.dtype.is_float and s.op not in _KNOWN:
            return True
        widened = isinstance(s, Let) and s.op == "cast" and types.get(s.args[0]) in _SHORT
        # Values of different stages may have the same name.
        short.difference_update(defined(s))
        products.difference_update(defined(s))
        types |= types_of(s, kernel.storage)
        if isinstance(s, Store) and of_product:
            buffers.add(s.buffer)
        if isinstance(s, Load) and s.buffer in buffers:
            products.add(s.name)
        if not isinstance(s, Let) or s.dtype not in _LONG:
            continue
        if widened:
            short.add(s.name)
        if rounds or (s.op in _PASSING and of_product):
            products.add(s.name)
    return False


def _is_sum(s: AnyStatement) -> bool:
    if isinstance(s, Store):
        return s.mode is StoreMode.TOTAL
    return isinstance(s, Reduce) and s.kind is ReduceKind.SUM
