"""`rank-templates`: choose the configurations of templates that are worth measuring."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen_triton.templates.emit import configurations
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.choices import choices_of
from gyrator_ir.tile.nodes import TiledTemplate, TileProgram


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
        if not any(isinstance(k, TiledTemplate) for k in program.kernels):
            return program
        kernels = (
            self._ranked(k, program.facts) if isinstance(k, TiledTemplate) else k
            for k in program.kernels
        )
        return evolve(program, kernels=tuple(kernels))

    def _ranked(self, tiled: TiledTemplate, facts: ShapeFacts) -> TiledTemplate:
        ranked = configurations(tiled.kernel, facts, self.cores, self.shared_bytes)
        return evolve(tiled, choices=choices_of(ranked), candidates=ranked)
