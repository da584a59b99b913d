"""`pack-steps`: longer steps for kernels of 8-bit and 16-bit integers."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import static
from gyrator_codegen.nests import nest
from gyrator_codegen.packing import PACKED, packs
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import LoopKind, TiledKernel


@frozen
class PackSteps(KernelPass):
    """Lengthen the steps along points of kernels whose elements the compiler packs into registers.
    Vectors have as many lanes as a register has 32-bit elements; of bytes, it has four times as
    many. This pass runs after `cut-sections`."""

    name: ClassVar[str] = "pack-steps"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        loops = nest(tiled)
        if loops is None or not loops.across or loops.lanes == 1 or tiled.choices:
            return tiled
        extent, unit = static(loops.axis.extent), loops.grid_step
        if extent is not None and extent <= unit:
            unit = -(-unit // PACKED) * PACKED  # still a single unit
        short = unit % PACKED or (extent is not None and extent < PACKED)
        if short or tiled.sections or tiled.transposed or not packs(tiled.kernel, loops.symbol):
            return tiled
        steps = {LoopKind.GRID: unit, LoopKind.LOOP: PACKED}
        return evolve(
            tiled,
            loops=tuple(
                evolve(x, step=steps[x.kind]) if x.axes[0] is loops.symbol else x
                for x in tiled.loops
            ),
        )
