"""Run-time floats and booleans: computed inside the kernels that use them."""

from collections.abc import Mapping
from typing import Any

import sympy

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.types import DType
from gyrator_lowering.build import LoopBuilder
from gyrator_lowering.promote import ScalarValue
from gyrator_lowering.trace import Tracer, Value

_UNARY = {
    "OpaqueUnaryFn_sqrt": "sqrt", "OpaqueUnaryFn_exp": "exp", "OpaqueUnaryFn_log": "log",
    "OpaqueUnaryFn_sin": "sin", "OpaqueUnaryFn_cos": "cos", "OpaqueUnaryFn_tanh": "tanh",
    "OpaqueUnaryFn_log2": "log2", "OpaqueUnaryFn_sinh": "sinh", "OpaqueUnaryFn_cosh": "cosh",
}  # fmt: skip
_BINARY = {"FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "PowByNatural": "pow"}


def scalar_of(b: LoopBuilder, fake: Any, leaves: Mapping[Any, ScalarValue]) -> ScalarValue:
    """Return a `SymFloat` or `SymBool` as a value that is traced, in `f64`, where it is used.

    `leaves` gives the values of symbols that were read from tensors.
    """
    node = fake.node
    expression = node.expr

    def trace(ops: Tracer) -> Value:
        return _float(b, ops, expression, leaves)

    if not expression.free_symbols and expression.is_number:
        number = float(expression)
        return ScalarValue(DType.F64, lambda ops: ops.const(number, DType.F64))
    return ScalarValue(DType.F64, trace)


def _float(b: LoopBuilder, ops: Tracer, e: sympy.Basic, leaves: Mapping[Any, ScalarValue]) -> Value:
    found = leaves.get(e)
    if found is not None:
        return ops.cast(found.trace(ops), DType.F64)
    if e.is_number:
        return ops.const(float(e), DType.F64)  # type: ignore[arg-type]
    if getattr(e, "is_integer", False):
        try:
            return ops.cast(ops.index(b.symbols.expression(e)), DType.F64)
        except UnsupportedError:
            if not e.args:
                raise
    name = type(e).__name__
    args = [_float(b, ops, a, leaves) for a in e.args]
    if name in ("ToFloat", "Identity"):
        return args[0]
    if name in _UNARY:
        return ops.let(_UNARY[name], args[0])
    if name in _BINARY:
        return ops.let(_BINARY[name], args[0], args[1])
    if name in ("Add", "Mul", "Max", "Min"):
        row = {"Add": "add", "Mul": "mul", "Max": "maximum", "Min": "minimum"}[name]
        total = args[0]
        for value in args[1:]:
            total = ops.let(row, total, value)
        return total
    if name == "Pow":
        return ops.pow(args[0], args[1])
    raise b.unsupported(
        "GY-LOWER-008",
        f"the run-time float {e} cannot be computed in a kernel",
        help="the graph runs in eager mode; compute on the tensor, before the number is read",
    )
