"""`one-hot-sums`: the sum of a row that is 0 but at one place is what stands there.

The gradient of a cross entropy is such a row: adding it up would take as long as reading it.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from attrs import frozen

from gyrator_ir.body.nodes import Axis, Const, IndexValue, Let, ReduceKind, Statement
from gyrator_ir.body.rewrite import defined, expressions, renamed, used
from gyrator_ir.expr import ONE, ZERO, Expr, Sym
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Pointwise, Reduction
from gyrator_ir.types import DType
from gyrator_scheduler.naming import fresh
from gyrator_scheduler.passes.rewriting import each_loop


@frozen
class OneHotSums:
    """Turn sums over one axis of `where(t == place, value, 0)` into pointwise operations."""

    name: ClassVar[str] = "one-hot-sums"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program without such sums."""
        return each_loop(program, _picked)


def _picked(op: LoopOperation) -> LoopOperation:
    if not isinstance(op, Reduction) or op.reduce.kind is not ReduceKind.SUM:
        return op
    axes = [a for a in op.inner if a.extent is not ONE]
    return _Row(op, axes[0]).picked() if len(axes) == 1 else op


class _Row:
    """The row that a sum is over.

    Args:
        op: the sum.
        axis: the axis that it is over.
    """

    def __init__(self, op: Reduction, axis: Axis) -> None:
        self._op, self._axis = op, axis
        self._made = {n: s for s in op.body for n in defined(s)}
        self._along = frozenset(_along(op.body, {a.symbol for a in op.inner}))

    def picked(self) -> LoopOperation:
        """Return what stands at the place that is looked for, 0 if that is outside the row; or the
        sum, if the row has more than that."""
        op = self._op
        equal = self._only()
        if equal is None:
            return op
        at, sought = sorted(equal.args, key=lambda a: a not in self._along)
        place = self._made[at]
        if not isinstance(place, IndexValue) or place.expr is not self._axis.symbol:
            return op
        taken = {*self._made, *op.reduce.names}
        first, end, above, below = (fresh(n, taken) for n in ("first", "end", "above", "below"))
        inside: tuple[Statement, ...] = (
            Const(first, 0, place.dtype),
            IndexValue(end, self._axis.extent, place.dtype),
            Let(above, "ge", (sought, first), DType.BOOL),
            Let(below, "lt", (sought, end), DType.BOOL),
            Let(equal.name, "bit_and", (above, below), DType.BOOL),
        )
        zeros: dict[Sym, Expr] = {a.symbol: ZERO for a in op.inner if a is not self._axis}
        stores = (renamed(s, {op.reduce.names[0]: op.reduce.args[0]}, zeros) for s in op.stores)
        body = [renamed(s, {}, zeros) for s in op.body if s is not place and s is not equal]
        if set(_along(body, {self._axis.symbol})) or any(at in used(s) for s in body):
            return op
        where = op.body.index(equal) - (op.body.index(place) < op.body.index(equal))
        body[where:where] = inside
        return Pointwise(op.name, op.axes, (*body, *stores), op.origins)

    def _only(self) -> Let | None:
        """Return the comparison that must hold where the row is not 0."""
        name = self._op.reduce.args[0]
        while isinstance(s := self._made.get(name), Let) and s.op == "cast":
            name = s.args[0]
        if not isinstance(s, Let) or s.op != "where":
            return None
        condition, value, other = s.args
        zero = self._made.get(other)
        if not isinstance(zero, Const) or zero.value != 0 or value in self._along:
            return None
        while isinstance(s := self._made.get(condition), Let) and s.op == "bit_and":
            along = [a for a in s.args if a in self._along]
            if len(along) != 1:
                return None
            condition = along[0]
        if not isinstance(s, Let) or s.op != "eq":
            return None
        return s if sum(a in self._along for a in s.args) == 1 else None


def _along(body: Sequence[Statement], symbols: set[Sym]) -> Iterator[str]:
    """Yield the values that differ along the row."""
    found: set[str] = set()
    for s in body:
        mentioned = any(not symbols.isdisjoint(e.free_symbols) for e in expressions(s))
        if mentioned or not found.isdisjoint(used(s)):
            found.update(defined(s))
            yield from defined(s)
