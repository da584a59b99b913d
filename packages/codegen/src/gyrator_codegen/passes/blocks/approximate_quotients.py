"""`approximate-quotients`: quotients in `f32` that only narrower floats will hold.

A device takes several times as long to round a quotient as to approximate it within two units in
the last place. A float of 16 bits shows such an error once in thousands of results, and then as one
unit of its own.
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
"""Ops whose result is as far from the exact one, relatively, as their operands are."""
_EXACT_MODES = (Numerics.BITWISE, Numerics.BATCH_INVARIANT)


@frozen
class ApproximateQuotients(KernelPass):
    """Approximate what is cast to a narrower float, or multiplied and divided and then cast.

    Kernels that promise eager's bits are left as they are.
    """

    name: ClassVar[str] = "approximate-quotients"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.numerics in _EXACT_MODES:
            return tiled
        body = [s for stage in kernel.stages for s in stage.body]
        seen: set[str] = set()
        for s in reversed(body):
            seen.update(_seen(s, seen))
        found = (
            s.name
            for s in body
            if isinstance(s, Let)
            and s.op in QUOTIENTS
            and s.dtype is DType.F32
            and s.name not in seen
        )
        return evolve(tiled, approximate=tuple(dict.fromkeys(found)))


def _seen(s: AnyStatement, seen: set[str]) -> Iterator[str]:
    """Yield the operands of a statement of whose last places more is seen than a narrow float."""
    if isinstance(s, Let):
        if s.op == "cast" and s.dtype.is_float and s.dtype.size < DType.F32.size:
            return
        if s.op in _RELATIVE and s.name not in seen:
            return
    yield from used(s)
