"""`share-reciprocals`: divide by what all elements of a row share by multiplication.

A correctly rounded quotient takes a device several times as long as a product. One with the
reciprocal of the divisor, which is computed once per row, is as accurate after one correction by
the remainder (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000
processor", 1990).
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import invariant
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Let, Store
from gyrator_ir.body.rewrite import defined
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.modes import EXACT_NUMERICS
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType


@frozen
class ShareReciprocals(KernelPass):
    """Divide by the reciprocal where a divisor in `f32` is the same for all inner elements of a
    point and the dividend is not.

    This pass runs after `approximate-functions`, whose quotients are cheaper still. Kernels whose
    numerics guarantee exact bits are not changed.
    """

    name: ClassVar[str] = "share-reciprocals"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.numerics in EXACT_NUMERICS:
            return tiled
        symbols = [a.symbol for a in kernel.inner]
        written = {s.buffer for s in kernel.statements if isinstance(s, Store)}
        shared: list[str] = []
        for stage in kernel.stages:
            if stage.level is not Level.INNER:
                continue
            _, rest = invariant(stage.body, symbols, written, loads=True)
            varying = {name for s in rest for name in defined(s)}
            shared += (
                s.name
                for s in rest
                if isinstance(s, Let)
                and s.op == "div"
                and s.dtype is DType.F32
                and s.name not in tiled.approximate
                and [a in varying for a in s.args] == [True, False]
            )
        return evolve(tiled, reciprocals=tuple(dict.fromkeys(shared)))
