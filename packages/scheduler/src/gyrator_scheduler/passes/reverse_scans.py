"""`reverse-scans`: scan reversed elements from the end, rather than reversing them in memory.

The gradient of a running sum is the running sum of the reversed gradients, reversed again. A scan
from the end computes it in one pass over contiguous elements.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_ir.body.nodes import POSITIONS, Bind, Load
from gyrator_ir.body.rewrite import renamed
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, Expr, Sym, subs
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Scan
from gyrator_scheduler.passes.rewriting import each_loop


@frozen
class ReverseScans:
    """Reverse the scans that only load elements in descending order of their addresses. Scans that
    compute positions are not reversed."""

    name: ClassVar[str] = "reverse-scans"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with scans in the order of their loads."""
        return each_loop(program, _reversed)


def _reversed(op: LoopOperation) -> LoopOperation:
    if not isinstance(op, Scan) or op.scan.kind in POSITIONS or not _descends(op):
        return op
    at = op.inner.symbol
    moved: dict[Sym, Expr] = {at: op.inner.extent - 1 - at}
    return evolve(
        op,
        body=tuple(renamed(s, {}, moved) for s in op.body),
        scan=evolve(op.scan, reverse=not op.scan.reverse),
        stores=tuple(renamed(s, {}, moved) for s in op.stores),
    )


def _descends(op: Scan) -> bool:
    """Return whether there are loads along the scan, all at descending addresses."""
    at = op.inner.symbol
    if any(isinstance(s, Bind) for s in op.body):
        return False
    along = [s.index for s in op.body if isinstance(s, Load) and at in s.index.free_symbols]
    steps = [subs(e, {at: at + 1}) - e for e in along]
    return bool(steps) and all(isinstance(s, Const) and s.value < 0 for s in steps)
