"""`index-width`: use 32-bit indices if everything fits."""

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
    """Use 32-bit indices for kernels in which every linear index, every address, and every operand
    of a division or comparison inside of one fits in 31 bits, with room for a block of `beyond`
    elements past the end."""

    name: ClassVar[str] = "index-width"
    beyond: int = 1 << 17

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        inside = kernel_facts(kernel, facts)
        most = (1 << 31) - self.beyond
        values = [extent_of(axes_of(kernel, loop)) for loop in tiled.loops]
        values.append(extent_of(kernel.axes))
        for s in kernel.statements:
            values += expressions(s)
        checked: set[Node] = set()
        if all(_fits(e, inside, checked, most) for e in values):
            return evolve(tiled, index=DType.I32)
        return tiled


def _fits(e: Expr, facts: ShapeFacts, checked: set[Node], most: int) -> bool:
    # Intermediate sums and products may wrap if the result fits, operands of other nodes may not.
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
