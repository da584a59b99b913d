"""`rank-configurations`: the values of a kernel's choices that are worth measuring, best first."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.blocks.block_shapes import block_shapes
from gyrator_codegen.passes.blocks.product_shapes import product_shapes
from gyrator_codegen.passes.rewriting import each_member
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.source import Configuration
from gyrator_ir.tile.nodes import Choice, TiledKernel, TileProgram


@frozen
class RankConfigurations:
    """Rank configurations by models of what a device with so many `cores` (multiprocessors) does.

    Choices are left with the values that models consider; `num_warps`, the warps of a program,
    joins them.

    `shared_bytes` is the memory that a program's threads may share, 0 where that is not known.
    Products of `f32` go to matrix units with `tf32`.
    """

    name: ClassVar[str] = "rank-configurations"
    cores: int = 1
    shared_bytes: int = 0
    tf32: bool = False

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with candidates, the best guess first."""
        return each_member(program, self._ranked)

    def _ranked(self, tiled: TiledKernel, facts: ShapeFacts, members: int) -> TiledKernel:
        if tiled.contraction is not None:
            shared = self.shared_bytes
            ranked = product_shapes(tiled, facts, self.cores, shared, self.tf32)
        else:
            ranked = block_shapes(tiled, facts, self.cores, members)
        values = (tuple(sorted(set(column))) for column in zip(*ranked.shapes, strict=True))
        choices = tuple(map(Choice, ranked.names, values))
        best = (tuple(zip(ranked.names, shape, strict=True)) for shape in ranked.best)
        return evolve(tiled, choices=choices, candidates=tuple(map(Configuration, best)))
