"""`keep-programs`: persistent programs for launches of several kernels, and the selection of their
tensors."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_ir.tile.nodes import Tiled, TiledGroup, TileProgram


@frozen
class KeepPrograms:
    """Limit each member of a group to its share of the programs that fill `cores` multiprocessors
    with `each` programs.

    A program first selects the tensors of its member, in time that grows with the number of
    members. Fewer programs do so less often, and each selects among `selected` members at a time.
    """

    name: ClassVar[str] = "keep-programs"
    cores: int = 1
    each: int = 8
    selected: int = 4

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with limits for all groups."""
        kernels = tuple(map(self._bounded, program.kernels))
        if all(new is old for new, old in zip(kernels, program.kernels, strict=True)):
            return program
        return evolve(program, kernels=kernels)

    def _bounded(self, tiled: Tiled) -> Tiled:
        if not isinstance(tiled, TiledGroup):
            return tiled
        programs = -(-self.cores * self.each // len(tiled.members))
        return evolve(tiled, programs=programs, selected=self.selected)
