"""`unit-reductions`: replace a reduction of one element by the element."""

from typing import ClassVar

from gyrator_ir.body.nodes import Const, Let, Reduce, ReduceKind, Statement
from gyrator_ir.body.rewrite import defined, renamed
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Expr, Sym
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Pointwise, Reduction
from gyrator_ir.types import DType
from gyrator_scheduler.naming import fresh
from gyrator_scheduler.passes.rewriting import each_loop


@frozen
class UnitReductions:
    """Convert reductions over axes of extent 1 to pointwise operations."""

    name: ClassVar[str] = "unit-reductions"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program without reductions of single elements."""
        return each_loop(program, _as_pointwise)


def _as_pointwise(op: LoopOperation) -> LoopOperation:
    if not isinstance(op, Reduction) or any(a.extent is not ONE for a in op.inner):
        return op
    used_names = {n for s in op.body for n in defined(s)} | set(op.reduce.names)
    computations, values = _results(op.reduce, used_names)
    zeros: dict[Sym, Expr] = {a.symbol: ZERO for a in op.inner}
    body = [renamed(s, {}, zeros) for s in op.body]
    stores = [renamed(s, values, zeros) for s in op.stores]
    return Pointwise(op.name, op.axes, (*body, *computations, *stores), op.origins)


def _results(reduction: Reduce, used_names: set[str]) -> tuple[list[Statement], dict[str, str]]:
    """Return the statements that compute a reduction of one element, and its results that are
    existing values, by name."""
    arg, dtype = reduction.args[0], reduction.dtype
    match reduction.kind:
        case ReduceKind.DOT:
            return [Let(reduction.names[0], "mul", reduction.args, dtype)], {}
        case ReduceKind.ARGMIN | ReduceKind.ARGMAX:
            return [Const(reduction.names[0], 0, DType.I64)], {}
        case ReduceKind.WELFORD:
            _, deviations, count = reduction.names
            statements: list[Statement] = [
                Let(deviations, "sub", (arg, arg), dtype),
                Const(count, 1.0, dtype),
            ]
            return statements, {reduction.names[0]: arg}
        case ReduceKind.ONLINE_SOFTMAX:
            zero = fresh("difference", used_names)
            return [
                Let(zero, "sub", (arg, arg), dtype),
                Let(reduction.names[1], "exp", (zero,), dtype),
            ], {reduction.names[0]: arg}
        case _:
            return [], {reduction.names[0]: arg}
