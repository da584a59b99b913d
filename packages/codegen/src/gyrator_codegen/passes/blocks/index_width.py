"""`index-width`: indices have 32 bits where everything fits."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.rewrite import expressions
from gyrator_ir.expr import (
    Cond,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Node,
    ShapeFacts,
    Where,
    children,
    iter_nodes,
)
from gyrator_ir.tile.loops import axes_of, extent_of, kernel_facts
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType


@frozen
class IndexWidth(KernelPass):
    """Give kernels 32-bit indices where every position, every index, and what is divided or
    compared inside of it, lies in 31 bits, with room for a block of `beyond` elements."""

    name: ClassVar[str] = "index-width"
    beyond: int = 1 << 17

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        known = kernel_facts(kernel, facts)
        most = (1 << 31) - self.beyond
        whole = [extent_of(axes_of(kernel, loop)) for loop in tiled.loops]
        whole.append(extent_of(kernel.axes))
        for stage in kernel.stages:
            for s in stage.body:
                whole += expressions(s)
        checked: set[Node] = set()
        if all(_fits(e, known, checked, most) for e in whole):
            return evolve(tiled, index=DType.I32)
        return tiled


def _fits(e: Expr, facts: ShapeFacts, checked: set[Node], most: int) -> bool:
    # Sums and products may wrap on the way if the result fits; operands of anything else may not.
    pending: list[Node] = [e]
    for node in iter_nodes(e):
        if isinstance(node, FloorDiv | Mod | Min | Max | Where | Cond):
            pending += children(node)
    for node in pending:
        if node in checked or not isinstance(node, Expr):
            continue
        low, high = facts.bounds(node)
        if low is None or high is None or low < -most or high > most:
            return False
        checked.add(node)
    return True
