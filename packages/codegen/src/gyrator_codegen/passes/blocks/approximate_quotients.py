"""`approximate-quotients`: approximate `f32` quotients that are rounded to narrower floats.

A correctly rounded quotient takes a device several times as long as an approximation within two
units in the last place. In a 16-bit result, such an error is visible only once in thousands of
values, as one unit in the last place.
"""

from collections.abc import Iterator
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Let
from gyrator_ir.body.rewrite import AnyStatement, used
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.modes import Numerics
from gyrator_ir.tile.nodes import QUOTIENTS, TiledKernel
from gyrator_ir.types import DType

_RELATIVE = frozenset(("mul", "div", "neg", "abs", "sqrt", "rsqrt"))
"""Ops that preserve the relative error of their operands."""
_EXACT_MODES = (Numerics.BITWISE, Numerics.BATCH_INVARIANT)


@frozen
class ApproximateQuotients(KernelPass):
    """Approximate quotients that are cast to a narrower float, possibly after products, quotients
    and the like.

    Kernels whose numerics guarantee exact bits are not changed.
    """

    name: ClassVar[str] = "approximate-quotients"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.numerics in _EXACT_MODES:
            return tiled
        body = kernel.statements
        precise: set[str] = set()
        for s in reversed(body):
            precise.update(_precise(s, precise))
        quotients = (
            s.name
            for s in body
            if isinstance(s, Let)
            and s.op in QUOTIENTS
            and s.dtype is DType.F32
            and s.name not in precise
        )
        return evolve(tiled, approximate=tuple(dict.fromkeys(quotients)))


def _precise(s: AnyStatement, precise: set[str]) -> Iterator[str]:
    """Yield the operands of a statement that must be accurate to full `f32` precision."""
    if isinstance(s, Let):
        if s.op == "cast" and s.dtype.is_float and s.dtype.size < DType.F32.size:
            return
        if s.op in _RELATIVE and s.name not in precise:
            return
    yield from used(s)
