"""`unit-reductions`: a fold of one element is the element."""

from typing import ClassVar

from attrs import frozen

from gyrator_ir.body.nodes import Const, Let, Reduce, ReduceKind, Statement
from gyrator_ir.body.rewrite import defined, renamed
from gyrator_ir.expr import ONE, ZERO, Expr, Sym
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Pointwise, Reduction
from gyrator_ir.types import DType
from gyrator_scheduler.naming import fresh
from gyrator_scheduler.passes.rewriting import each_loop


@frozen
class UnitReductions:
    """Turn reductions whose every reduced axis has extent 1 into pointwise operations."""

    name: ClassVar[str] = "unit-reductions"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program without folds of single elements."""
        return each_loop(program, _unfolded)


def _unfolded(op: LoopOperation) -> LoopOperation:
    if not isinstance(op, Reduction) or any(a.extent is not ONE for a in op.inner):
        return op
    taken = {n for s in op.body for n in defined(s)} | set(op.reduce.names)
    made, values = _results(op.reduce, taken)
    zeros: dict[Sym, Expr] = {a.symbol: ZERO for a in op.inner}
    body = [renamed(s, {}, zeros) for s in op.body]
    stores = [renamed(s, values, zeros) for s in op.stores]
    return Pointwise(op.name, op.axes, (*body, *made, *stores), op.origins)


def _results(fold: Reduce, taken: set[str]) -> tuple[list[Statement], dict[str, str]]:
    """Return statements that compute a fold of one element, and the names of its results."""
    arg, dtype = fold.args[0], fold.dtype
    match fold.kind:
        case ReduceKind.DOT:
            return [Let(fold.names[0], "mul", fold.args, dtype)], {}
        case ReduceKind.ARGMIN | ReduceKind.ARGMAX:
            return [Const(fold.names[0], 0, DType.I64)], {}
        case ReduceKind.WELFORD:
            _, deviations, count = fold.names
            made: list[Statement] = [
                Let(deviations, "sub", (arg, arg), dtype),
                Const(count, 1.0, dtype),
            ]
            return made, {fold.names[0]: arg}
        case ReduceKind.ONLINE_SOFTMAX:
            zero = fresh("difference", taken)
            return [
                Let(zero, "sub", (arg, arg), dtype),
                Let(fold.names[1], "exp", (zero,), dtype),
            ], {fold.names[0]: arg}
        case _:
            return [], {fold.names[0]: arg}
