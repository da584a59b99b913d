"""`keep-programs`: how many programs of a launch of several kernels stay for more than a block, and
how they find their tensors."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_ir.tile.nodes import Tiled, TiledGroup, TileProgram


@frozen
class KeepPrograms:
    """Give each member of a group its share of what fills `cores` multiprocessors, `each` programs
    of one.

    A program first finds the tensors of its member, which takes time that grows with the number of
    members: fewer programs do so less often, and each selects among `selected` members at a time.
    """

    name: ClassVar[str] = "keep-programs"
    cores: int = 1
    each: int = 8
    selected: int = 4

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program whose groups say how their members are run."""
        kernels = tuple(map(self._bounded, program.kernels))
        if all(new is old for new, old in zip(kernels, program.kernels, strict=True)):
            return program
        return evolve(program, kernels=kernels)

    def _bounded(self, tiled: Tiled) -> Tiled:
        if not isinstance(tiled, TiledGroup):
            return tiled
        programs = -(-self.cores * self.each // len(tiled.members))
        return evolve(tiled, programs=programs, selected=self.selected)
