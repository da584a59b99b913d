"""`place-locals`: allocate small locals on the stack."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import static
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class PlaceLocals(KernelPass):
    """Allocate locals of constant size on the stack if they are small."""

    most: int = 65536
    """Maximum size of such a local in bytes."""

    name: ClassVar[str] = "place-locals"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        if not tiled.kernel.locals:
            return tiled
        loops = nest(tiled)
        points = loops.lanes if loops is not None and loops.across else 1
        small: list[str] = []
        for local in tiled.kernel.locals:
            extent = static(local.extent)
            if extent is not None and extent * points * local.dtype.size <= self.most:
                small.append(local.name)
        return evolve(tiled, stack=tuple(small))
