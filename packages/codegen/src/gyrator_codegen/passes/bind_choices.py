"""`bind-choices`: kernels whose choices are made."""

from typing import ClassVar

from attrs import frozen

from gyrator_codegen.passes.rewriting import each_kernel
from gyrator_ir.tile.choices import bound
from gyrator_ir.tile.nodes import TileProgram


@frozen
class BindChoices:
    """Replace each choice by the value that the first candidate gives it.

    Languages whose kernels have no parameters for choices run it before they print.
    """

    name: ClassVar[str] = "bind-choices"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program without choices."""
        return each_kernel(program, lambda tiled, _: bound(tiled))
