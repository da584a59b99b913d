"""`inline-pointwise`: compute a value where it is used, rather than store it and load it."""

from typing import ClassVar

from attrs import frozen

from gyrator_ir.loop.nodes import LoopProgram
from gyrator_scheduler.passes.drop_dead_buffers import DropDeadBuffers
from gyrator_scheduler.passes.inlining.choose import choose
from gyrator_scheduler.passes.inlining.expand import expand
from gyrator_scheduler.passes.rewriting import each_subprogram


@frozen
class InlinePointwise:
    """Compute pointwise producers again inside their readers, through any address map.

    A producer with a single use moves into its reader. One with several uses is computed at each if
    that is cheap: its arithmetic costs at most `cost`, nothing in it is transcendental if a use
    repeats points, and reading its operands moves no more memory than storing and loading it would.
    """

    name: ClassVar[str] = "inline-pointwise"
    cost: int = 24
    """Most that a value used several times may cost, by the op table."""
    statements: int = 512
    """Bodies grow no longer than this."""
    keep_memory: bool = False
    """Never make an operand live longer unless that frees as much."""

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with producers in their readers."""
        chosen = choose(program, self.cost, self.statements, self.keep_memory)
        if chosen.producers:
            program = DropDeadBuffers().run(expand(program, chosen))
        return each_subprogram(program, self.run)
