"""`merge-axes`: merge adjacent axes that all addresses traverse as one."""

from typing import ClassVar

from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Reduction
from gyrator_ir.loop.uses import inner_of, statements_of, stores_after
from gyrator_scheduler.merging import addresses, drop_ones, merge, with_expressions
from gyrator_scheduler.passes.rewriting import each_loop, rebuilt


@frozen
class MergeAxes:
    """Drop axes of extent 1 and merge adjacent axes: a contiguous [8, 128, 256] becomes [262144].

    Fusion splits axes again if two operations view a buffer in different shapes.
    """

    name: ClassVar[str] = "merge-axes"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with as few axes as the addresses allow."""
        return each_loop(program, _merged)


def _merged(op: LoopOperation) -> LoopOperation:
    inner = inner_of(op)
    unit = any(a.extent is ONE for a in (*op.axes, *inner))
    if not unit and len(op.axes) < 2 and len(inner) < 2:
        return op
    new = addresses(statements_of(op))
    points = merge(drop_ones(op.axes, new), new)
    if isinstance(op, Reduction):
        reduced = drop_ones(inner, new) if any(a.extent is not ONE for a in inner) else inner[:1]
        if len(inner) > 1 and not any(a.extent is not ONE for a in inner):
            drop_ones(inner[1:], new)
        inner = merge(reduced, new)
    if points == op.axes and inner == inner_of(op):
        return op
    body = with_expressions(op.body, new.__getitem__)
    return rebuilt(op, points, inner, body, with_expressions(stores_after(op), new.__getitem__))
