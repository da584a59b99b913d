"""`keep-programs`: persistent programs for launches of several kernels, and the selection of their
tensors."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import each_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledGroup, TileProgram


@frozen
class KeepPrograms:
    """Limit each member of a group to its share of the programs that fill `cores` multiprocessors
    with `each` programs.

    A program first selects the tensors of its member, in time that grows with the number of
    members. Fewer programs do so less often, and each selects among `selected` members at a time.
    The selection among up to `each` members of different kernels, of which most have a branch of
    their own, is quick.
    """

    name: ClassVar[str] = "keep-programs"
    cores: int = 1
    each: int = 8
    selected: int = 4

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with limits for all groups."""
        return each_of(program, TiledGroup, self._bounded)

    def _bounded(self, tiled: TiledGroup, facts: ShapeFacts) -> TiledGroup:
        members = len(tiled.members)
        several = len(tiled.kernels) > 1
        programs = 0 if several and members <= self.each else -(-self.cores * self.each // members)
        return evolve(tiled, programs=programs, selected=self.selected)
