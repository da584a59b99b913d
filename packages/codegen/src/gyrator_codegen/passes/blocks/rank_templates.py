"""`rank-templates`: choose the configurations of templates that are worth measuring."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.blocks.attention_shapes import (
    attention_shapes,
    gradient_shapes,
    problem_of,
)
from gyrator_codegen.passes.rewriting import each_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.tile.choices import choices_of
from gyrator_ir.tile.nodes import TiledTemplate, TileProgram

_GRADIENTS = (TemplateKind.ATTENTION_GRADIENTS, TemplateKind.FLEX_ATTENTION_GRADIENTS)


@frozen
class RankTemplates:
    """Rank the blocks, warps and stages of each template by its performance model.

    `cores` and `shared_bytes` are from the target's heuristics, as for `rank-configurations`.
    """

    name: ClassVar[str] = "rank-templates"
    cores: int = 1
    shared_bytes: int = 0

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with candidates, best estimate first."""
        return each_of(program, TiledTemplate, self._ranked)

    def _ranked(self, tiled: TiledTemplate, facts: ShapeFacts) -> TiledTemplate:
        shapes = gradient_shapes if tiled.kernel.kind in _GRADIENTS else attention_shapes
        ranked = shapes(problem_of(tiled.kernel, facts), self.cores, self.shared_bytes)
        return evolve(tiled, choices=choices_of(ranked), candidates=ranked)
