"""`rank-configurations`: rank the values of a kernel's choices that are worth measuring."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.blocks.block_shapes import block_shapes
from gyrator_codegen.passes.blocks.product_shapes import product_shapes
from gyrator_codegen.passes.rewriting import each_member
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.source import Configuration
from gyrator_ir.tile.nodes import Choice, TiledKernel, TileProgram


@frozen
class RankConfigurations:
    """Rank configurations by performance models of a device with `cores` multiprocessors.

    Choices are restricted to the values that the models consider, and the number of warps of a
    program, `num_warps`, becomes another choice.

    `shared_bytes` is the memory that the threads of a program may share, or 0 if unknown. With
    `tf32`, `f32` products run on matrix units.
    """

    name: ClassVar[str] = "rank-configurations"
    cores: int = 1
    shared_bytes: int = 0

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with candidates, best guess first."""
        return each_member(program, self._ranked)

    def _ranked(self, tiled: TiledKernel, facts: ShapeFacts, members: int) -> TiledKernel:
        if tiled.contraction is not None:
            shared = self.shared_bytes
            ranked = product_shapes(tiled, facts, self.cores, shared)
        else:
            ranked = block_shapes(tiled, facts, self.cores, members)
        values = (tuple(sorted(set(column))) for column in zip(*ranked.shapes, strict=True))
        choices = tuple(map(Choice, ranked.names, values))
        best = (tuple(zip(ranked.names, shape, strict=True)) for shape in ranked.best)
        return evolve(tiled, choices=choices, candidates=tuple(map(Configuration, best)))
