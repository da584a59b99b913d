"""`nonempty-rows`: prove that no inner axis is empty."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import static
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class NonemptyRows(KernelPass):
    """Prove that no inner axis is empty; without `symbolic`, only for constant extents."""

    symbolic: bool = True

    name: ClassVar[str] = "nonempty-rows"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        extents = [a.extent for a in tiled.kernel.inner]
        if self.symbolic:
            sure = all(map(facts.known_positive, extents))
        else:
            sure = all((static(e) or 0) > 0 for e in extents)
        return evolve(tiled, nonempty=True) if extents and sure else tiled
