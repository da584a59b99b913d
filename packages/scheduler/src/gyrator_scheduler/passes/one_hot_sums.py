"""`one-hot-sums`: replace the sum of a one-hot row by a lookup of its non-zero element.

The gradient of a cross entropy is such a row. Summing it takes as long as reading all of it.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from gyrator_ir.body.nodes import Axis, Const, IndexValue, Let, ReduceKind, Statement
from gyrator_ir.body.rewrite import defined, expressions, renamed, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Expr, Sym
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Pointwise, Reduction
from gyrator_ir.types import DType
from gyrator_scheduler.naming import fresh
from gyrator_scheduler.passes.rewriting import each_loop


@frozen
class OneHotSums:
    """Convert sums over one axis of `where(t == index, value, 0)` to pointwise operations."""

    name: ClassVar[str] = "one-hot-sums"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program without such sums."""
        return each_loop(program, _simplified)


def _simplified(op: LoopOperation) -> LoopOperation:
    if not isinstance(op, Reduction) or op.reduce.kind is not ReduceKind.SUM:
        return op
    axes = [a for a in op.inner if a.extent is not ONE]
    return _Row(op, axes[0]).looked_up() if len(axes) == 1 else op


class _Row:
    """The row that a sum reduces.

    Args:
        op: the sum.
        axis: its axis of extent other than 1.
    """

    def __init__(self, op: Reduction, axis: Axis) -> None:
        self._op, self._axis = op, axis
        self._definitions = {n: s for s in op.body for n in defined(s)}
        self._varying = frozenset(_varying(op.body, {a.symbol for a in op.inner}))

    def looked_up(self) -> LoopOperation:
        """Return a pointwise operation that looks up the non-zero element, or yields 0 if its index
        is outside of the row; the unchanged sum if the row is not one-hot."""
        op = self._op
        equal = self._comparison()
        if equal is None:
            return op
        index, target = sorted(equal.args, key=lambda a: a not in self._varying)
        place = self._definitions[index]
        if not isinstance(place, IndexValue) or place.expr is not self._axis.symbol:
            return op
        used_names = {*self._definitions, *op.reduce.names}
        first, end, above, below = (
            fresh(n, used_names) for n in ("first", "end", "above", "below")
        )
        inside: tuple[Statement, ...] = (
            Const(first, 0, place.dtype),
            IndexValue(end, self._axis.extent, place.dtype),
            Let(above, "ge", (target, first), DType.BOOL),
            Let(below, "lt", (target, end), DType.BOOL),
            Let(equal.name, "bit_and", (above, below), DType.BOOL),
        )
        zeros: dict[Sym, Expr] = {a.symbol: ZERO for a in op.inner if a is not self._axis}
        stores = (renamed(s, {op.reduce.names[0]: op.reduce.args[0]}, zeros) for s in op.stores)
        body = [renamed(s, {}, zeros) for s in op.body if s is not place and s is not equal]
        if set(_varying(body, {self._axis.symbol})) or any(index in used(s) for s in body):
            return op
        position = op.body.index(equal) - (op.body.index(place) < op.body.index(equal))
        body[position:position] = inside
        return Pointwise(op.name, op.axes, (*body, *stores), op.origins)

    def _comparison(self) -> Let | None:
        """Return the comparison that is true at the non-zero element, or None."""
        name = self._op.reduce.args[0]
        while isinstance(s := self._definitions.get(name), Let) and s.op == "cast":
            name = s.args[0]
        if not isinstance(s, Let) or s.op != "where":
            return None
        condition, value, other = s.args
        zero = self._definitions.get(other)
        if not isinstance(zero, Const) or zero.value != 0 or value in self._varying:
            return None
        while isinstance(s := self._definitions.get(condition), Let) and s.op == "bit_and":
            along = [a for a in s.args if a in self._varying]
            if len(along) != 1:
                return None
            condition = along[0]
        if not isinstance(s, Let) or s.op != "eq":
            return None
        return s if sum(a in self._varying for a in s.args) == 1 else None


def _varying(body: Sequence[Statement], symbols: set[Sym]) -> Iterator[str]:
    """Yield the names of values that depend on the symbols."""
    result: set[str] = set()
    for s in body:
        mentioned = any(not symbols.isdisjoint(e.free_symbols) for e in expressions(s))
        if mentioned or not result.isdisjoint(used(s)):
            result.update(defined(s))
            yield from defined(s)
