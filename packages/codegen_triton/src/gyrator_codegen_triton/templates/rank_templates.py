"""`rank-templates`: the configurations of templates that are worth measuring, best first."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen_triton.templates.emit import configurations
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.source import Configuration
from gyrator_ir.target import Heuristics
from gyrator_ir.tile.choices import choices_of
from gyrator_ir.tile.nodes import TiledTemplate, TileProgram


@frozen
class RankTemplates:
    """Rank the blocks, warps and stages of each template by its own model of a device."""

    heuristics: Heuristics

    name: ClassVar[str] = "rank-templates"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with candidates, the best guess first."""
        if not any(isinstance(k, TiledTemplate) for k in program.kernels):
            return program
        kernels = (
            self._ranked(k, program.facts) if isinstance(k, TiledTemplate) else k
            for k in program.kernels
        )
        return evolve(program, kernels=tuple(kernels))

    def _ranked(self, tiled: TiledTemplate, facts: ShapeFacts) -> TiledTemplate:
        found: tuple[Configuration, ...] = configurations(tiled.kernel, facts, self.heuristics)
        return evolve(tiled, choices=choices_of(found), candidates=found)
