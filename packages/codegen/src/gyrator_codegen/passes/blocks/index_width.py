"""`index-width`: use 32-bit indices if everything fits."""

from collections.abc import Iterable
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import each_kernel, each_of
from gyrator_ir.body.rewrite import expressions
from gyrator_ir.define import frozen
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
    sum_of,
)
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.tile.loops import axes_of, extent_of, kernel_facts
from gyrator_ir.tile.nodes import TiledKernel, TiledTemplate, TileProgram
from gyrator_ir.types import DType


@frozen
class IndexWidth:
    """Use 32-bit indices for kernels in which every linear index, every address, and every operand
    of a division or comparison inside of one fits in 31 bits, with room for a block of `beyond`
    elements past the end. Of a template, these are its sizes and its tensors' last addresses."""

    name: ClassVar[str] = "index-width"
    beyond: int = 1 << 17

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with the width of all kernels' and templates' indices."""
        return each_of(each_kernel(program, self._tile), TiledTemplate, self._template)

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        values = [extent_of(axes_of(kernel, loop)) for loop in tiled.loops]
        values.append(extent_of(kernel.axes))
        for s in kernel.statements:
            values += expressions(s)
        fit = self._fit(values, kernel_facts(kernel, facts))
        return evolve(tiled, index=DType.I32) if fit else tiled

    def _template(self, tiled: TiledTemplate, facts: ShapeFacts) -> TiledTemplate:
        kernel = tiled.kernel
        ends = map(_last_address, (*kernel.inputs, *kernel.outputs))
        return evolve(tiled, index=DType.I32) if self._fit((*kernel.sizes, *ends), facts) else tiled

    def _fit(self, values: Iterable[Expr], facts: ShapeFacts) -> bool:
        most = (1 << 31) - self.beyond
        checked: set[Node] = set()
        return all(_fits(e, facts, checked, most) for e in values)


def _last_address(tensor: TensorRef) -> Expr:
    last = ((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    return sum_of([tensor.offset, *last])


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
