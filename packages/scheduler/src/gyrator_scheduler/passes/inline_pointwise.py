"""`inline-pointwise`: compute a value in its readers instead of storing and loading it."""

from typing import ClassVar

from gyrator_ir.define import frozen
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_scheduler.passes.drop_dead_buffers import DropDeadBuffers
from gyrator_scheduler.passes.inlining.choose import choose
from gyrator_scheduler.passes.inlining.expand import expand
from gyrator_scheduler.passes.rewriting import each_subprogram


@frozen
class InlinePointwise:
    """Inline pointwise producers into their readers, through any address map.

    A producer with a single use is moved into its reader. One with several uses is recomputed in
    each if that is cheap: its arithmetic costs at most `cost`, it has no transcendental op if a use
    repeats points, and reading its operands moves no more memory than storing and loading it.
    """

    name: ClassVar[str] = "inline-pointwise"
    cost: int = 24
    """Maximum cost, by the op table, of a value that is computed several times."""
    statements: int = 512
    """Maximum number of statements in a body."""
    keep_memory: bool = False
    """Extend the lifetime of operands only if that frees at least as much memory."""

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with producers inlined into their readers."""
        producers = choose(program, self.cost, self.statements, self.keep_memory)
        if producers:
            program = DropDeadBuffers().run(expand(program, producers))
        return each_subprogram(program, self.run)
