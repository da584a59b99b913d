"""`simplify-indices`: simplify addresses under the facts about sizes and axes."""

from typing import ClassVar

from gyrator_ir.body.nodes import Axis, Bind, Statement
from gyrator_ir.define import frozen
from gyrator_ir.expr import Expr
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram
from gyrator_ir.loop.uses import inner_of, stores_after
from gyrator_scheduler.merging import with_expressions
from gyrator_scheduler.passes.rewriting import each_subprogram, rebuilt, with_operations
from gyrator_scheduler.ranges import Ranges


@frozen
class SimplifyIndices:
    """Simplify every address under the program's facts, the ranges of its axes, and the range
    [0, size) of bound indices."""

    name: ClassVar[str] = "simplify-indices"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with simpler addresses."""
        ranges = Ranges(program.facts)
        operations = [
            _simple(op, ranges) if isinstance(op, LoopOperation) else op
            for op in program.operations
        ]
        return each_subprogram(with_operations(program, operations), self.run)


def bound_axes(body: tuple[Statement, ...]) -> tuple[Axis, ...]:
    """Return the indices that a body loads, with their ranges, as axes."""
    return tuple(Axis(s.symbol, s.size) for s in body if isinstance(s, Bind))


def _simple(op: LoopOperation, ranges: Ranges) -> LoopOperation:
    inner = inner_of(op)
    axes = (*op.axes, *inner, *bound_axes(op.body))

    def change(e: Expr) -> Expr:
        return ranges.simplify(e, axes)

    stores = stores_after(op)
    body, after = with_expressions(op.body, change), with_expressions(stores, change)
    same = all(a is b for a, b in zip(body + after, op.body + stores, strict=True))
    return op if same else rebuilt(op, op.axes, inner, body, after)
