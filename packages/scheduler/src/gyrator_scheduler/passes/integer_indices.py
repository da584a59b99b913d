"""`integer-indices`: compute indices by integers that a body computes by floating-point numbers.

Resizing by the nearest element multiplies positions by a float and rounds down. Backends see in
`i // 2`, unlike in the result of arithmetic, which elements are adjacent and which are equal.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from typing import ClassVar

from gyrator_ir.body.nodes import Axis, Bind, IndexValue, Let
from gyrator_ir.body.nodes import Const as Number
from gyrator_ir.body.rewrite import AnyStatement, live, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, Expr, Sym, evaluate, subs
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram
from gyrator_ir.loop.uses import inner_of, statements_of, stores_after
from gyrator_ir.types import DType
from gyrator_scheduler.merging import with_expressions
from gyrator_scheduler.passes.rewriting import each_loop, rebuilt

_LONGEST = 1 << 12
"""Maximum number of positions along an axis that are computed."""
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floor": math.floor,
    "minimum": min,
    "maximum": max,
}
_INTEGERS, _FLOATS = (DType.I32, DType.I64), (DType.F32, DType.F64)


@frozen
class IntegerIndices:
    """Replace bound indices that are computed from the position along one axis, of a constant
    length, by `(i + a) // k` or `c * i + a` where these equal them at every position, with each
    operation rounded as in eager mode."""

    name: ClassVar[str] = "integer-indices"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with simpler indices."""
        return each_loop(program, _with_integers)


def _with_integers(op: LoopOperation) -> LoopOperation:
    binds = [s for s in op.body if isinstance(s, Bind) and s.mask is None]
    if not any(isinstance(s, Let) and s.op == "cast" for s in op.body) or not binds:
        return op
    inner = inner_of(op)
    axes = {a.symbol: a for a in (*op.axes, *inner)}
    integers: dict[Sym, Expr] = {}
    for bind in binds:
        index = _integer(needed_for(op.body, bind.value), bind, axes)
        if index is not None:
            integers[bind.symbol] = index
    if not integers:
        return op

    def change(e: Expr) -> Expr:
        return subs(e, integers)

    rest = [s for s in op.body if not (isinstance(s, Bind) and s.symbol in integers)]
    results = (name for s in statements_of(op)[len(op.body) :] for name in used(s))
    body = live(with_expressions(rest, change), results)
    return rebuilt(op, op.axes, inner, body, with_expressions(stores_after(op), change))


def _integer(body: Sequence[AnyStatement], bind: Bind, axes: Mapping[Sym, Axis]) -> Expr | None:
    """Return an expression that equals a bound index, or None."""
    symbols = {x for s in body if isinstance(s, IndexValue) for x in s.expr.free_symbols}
    axis = axes.get(next(iter(symbols))) if len(symbols) == 1 else None
    if axis is None or not isinstance(axis.extent, Const) or not isinstance(bind.size, Const):
        return None
    if not all(map(_computed, body)) or axis.extent.value > _LONGEST:
        return None
    if not any(isinstance(s, Let) and s.dtype in _FLOATS for s in body):
        return None
    values = _values(body, bind.value, axis.symbol, axis.extent.value)
    inside = all(0 <= v < bind.size.value for v in values)
    return _fitted(values, axis.symbol) if inside else None


def _computed(s: AnyStatement) -> bool:
    """Return whether this module computes a statement as programs do."""
    match s:
        case IndexValue() | Number():
            return s.dtype in _INTEGERS + _FLOATS
        case Let(op=name, dtype=dtype):
            return dtype in _INTEGERS + _FLOATS and (name == "cast" or name in _FUNCTIONS)
        case _:
            return False


def _values(body: Sequence[AnyStatement], name: str, i: Sym, extent: int) -> list[int]:
    """Return the values of an integer for all positions `i`; none if a float is infinite or NaN."""
    columns: dict[str, list[float]] = {}
    for s in body:
        match s:
            case IndexValue(result, e, dtype):
                column: list[float] = [evaluate(e, {i: k}) for k in range(extent)]
            case Number(result, value, dtype):
                column = [value] * extent
            case Let(result, "cast", (arg,), dtype):
                column = columns[arg]
            case Let(result, function, args, dtype):
                column = [*map(_FUNCTIONS[function], *(columns[a] for a in args))]
            case _:
                raise AssertionError(s)
        columns[result] = _as_type(column, dtype)
        if not all(map(math.isfinite, columns[result])):
            return []
    return [int(v) for v in columns[name]]


def _as_type(values: list[float], dtype: DType) -> list[float]:
    if dtype is DType.F32:
        return [c_float(v).value for v in values]
    return [*map(float if dtype is DType.F64 else int, values)]


def _fitted(values: Sequence[int], i: Sym) -> Expr | None:
    """Return an expression in `i` that takes these values for `i` = 0, 1, ..., or None."""
    changes = [k for k in range(1, len(values)) if values[k] != values[k - 1]]
    if len(changes) < 2:
        return None
    length = changes[1] - changes[0]
    if length == 1:
        step = values[1] - values[0]
        return _equal(values, step * i + values[0], i)
    return _equal(values, (i + (length * (values[0] + 1) - changes[0])) // length, i)


def _equal(values: Sequence[int], e: Expr, i: Sym) -> Expr | None:
    same = all(evaluate(e, {i: k}) == v for k, v in enumerate(values))
    return e if same else None
