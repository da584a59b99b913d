"""`plain-divisions`: find divisions for which machine instructions can be used.

Quotients in the IR round down, those of machines towards zero. They agree if the numerator is never
negative.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.rewrite import expressions
from gyrator_ir.define import frozen
from gyrator_ir.expr import Expr, FloorDiv, Mod, ShapeFacts, ceildiv, iter_nodes
from gyrator_ir.tile.loops import axes_of, extent_of, kernel_facts, steps_of
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class PlainDivisions(KernelPass):
    """Record the divisions of a kernel without negative operands. This pass runs last."""

    name: ClassVar[str] = "plain-divisions"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        divisions: dict[FloorDiv | Mod, None] = {}
        for e in dict.fromkeys(_written(tiled)):
            for node in iter_nodes(e):
                if isinstance(node, FloorDiv | Mod):
                    divisions[node] = None
        if not divisions:
            return tiled
        inside = kernel_facts(tiled.kernel, facts)
        return evolve(tiled, plain=tuple(d for d in divisions if inside.nonnegative_division(d)))


def _written(tiled: TiledKernel) -> list[Expr]:
    """Return the expressions that occur in the kernel's text."""
    kernel = tiled.kernel
    written = [a.extent for a in (*kernel.axes, *kernel.inner)]
    written += [local.extent for local in kernel.locals]
    written += [e for s in kernel.statements for e in expressions(s)]
    written += [p.index for p in tiled.prefetches]
    counts = ((x, step) for x in tiled.loops for step in steps_of(tiled, x))
    return written + [ceildiv(extent_of(axes_of(kernel, x)), step) for x, step in counts]
