"""`bind-choices`: replace choices by values."""

from typing import ClassVar

from gyrator_codegen.passes.rewriting import each_kernel
from gyrator_ir.define import frozen
from gyrator_ir.tile.choices import bound
from gyrator_ir.tile.nodes import TileProgram


@frozen
class BindChoices:
    """Replace each choice by its value in the first candidate.

    Languages whose kernels have no parameters for choices run this pass before they print.
    """

    name: ClassVar[str] = "bind-choices"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with all choices bound."""
        return each_kernel(program, lambda tiled, _: bound(tiled))
