"""Run-time floats and booleans: computed inside the kernels that use them."""

from collections.abc import Mapping
from functools import reduce
from operator import and_, or_
from typing import Any

import sympy
import torch

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Sym
from gyrator_ir.loop.nodes import ScalarRead
from gyrator_ir.modes import Numerics
from gyrator_ir.types import HOST, Device, DType
from gyrator_lowering.builder.program import LoopBuilder, each
from gyrator_lowering.builder.trace import ScalarValue, Tracer, Value
from gyrator_lowering.builder.values import Spec
from gyrator_lowering.torch_bridge.symbols import ROUNDINGS

_UNARY = {
    "OpaqueUnaryFn_sqrt": "sqrt", "OpaqueUnaryFn_exp": "exp", "OpaqueUnaryFn_log": "log",
    "OpaqueUnaryFn_sin": "sin", "OpaqueUnaryFn_cos": "cos", "OpaqueUnaryFn_tanh": "tanh",
    "OpaqueUnaryFn_log2": "log2", "OpaqueUnaryFn_sinh": "sinh", "OpaqueUnaryFn_cosh": "cosh",
}  # fmt: skip
_RELATIONS = {
    "Equality": "eq", "Unequality": "ne", "LessThan": "le", "StrictLessThan": "lt",
    "GreaterThan": "ge", "StrictGreaterThan": "gt",
}  # fmt: skip
_BINARY = {"FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "PowByNatural": "pow"}


def scalar_of(b: LoopBuilder, fake: Any, leaves: Mapping[Any, ScalarValue]) -> ScalarValue:
    """Return a `SymFloat` or `SymBool` as a value that is traced where it is used: in `f64`, or in
    `f32` on devices whose kernels lack that.

    `leaves` gives the values of symbols that were read from tensors.
    """
    expression = fake.node.expr
    if isinstance(fake, torch.SymBool):
        return ScalarValue(DType.BOOL, lambda ops: _bool(b, ops, expression, leaves, _real(b)))

    def trace(ops: Tracer) -> Value:
        return _float(b, ops, expression, leaves, _real(b))

    if not expression.free_symbols and expression.is_number:
        number = float(expression)
        return ScalarValue(DType.F64, lambda ops: ops.const(number, _real(b)))
    return ScalarValue(DType.F64, trace)


def _real(b: LoopBuilder) -> DType:
    """Return what floats of Python are in the kernels of the current node's device."""
    fakes = (f for f in each(b.node.meta.get("val")) if isinstance(f, torch.Tensor))
    targets = (b.targets[f.device.type] for f in fakes if f.device.type in b.targets)
    known = all(DType.F64 in t.capabilities.dtypes for t in targets)
    return DType.F64 if known or b.options.numerics is Numerics.BITWISE else DType.F32


def read_size(
    b: LoopBuilder, symbol: Sym, value: sympy.Basic, leaves: Mapping[Any, ScalarValue]
) -> None:
    """Compute a size that is a rounded float on the host, and bind the symbol to it."""

    def body(ops: Tracer, _: object) -> Value:
        number = _float(b, ops, value.args[0], leaves, DType.F64)
        return ops.cast(ops.let(ROUNDINGS[type(value).__name__], number), DType.I64)

    if HOST not in b.targets:
        raise _unknown(b, "size", value)
    held = b.pointwise(body, Spec(DType.I64, Device(HOST), (), ()))
    b.operations.append(ScalarRead(b.op_name(), held.ref, symbol, b.origin))


def _bool(
    b: LoopBuilder, ops: Tracer, e: sympy.Basic, leaves: Mapping[Any, ScalarValue], real: DType
) -> Value:
    if e in leaves:
        return ops.cast(leaves[e].trace(ops), DType.BOOL)
    if e in (sympy.true, sympy.false):
        return ops.const(e == sympy.true, DType.BOOL)
    name = type(e).__name__
    if name in _RELATIONS:
        left, right = (_float(b, ops, a, leaves, real) for a in e.args)
        return ops.let(_RELATIONS[name], left, right)
    parts = [_bool(b, ops, a, leaves, real) for a in e.args]
    if name == "Not":
        return ~parts[0]
    if name in ("And", "Or"):
        return reduce(and_ if name == "And" else or_, parts)
    raise _unknown(b, "condition", e)


def _unknown(b: LoopBuilder, what: str, e: sympy.Basic) -> UnsupportedError:
    return b.unsupported(
        "GY-LOWER-008",
        f"the run-time {what} {e} cannot be computed in a kernel",
        help="PyTorch runs the op; compute on the tensor, before the number is read",
    )


def _float(
    b: LoopBuilder, ops: Tracer, e: sympy.Basic, leaves: Mapping[Any, ScalarValue], real: DType
) -> Value:
    found = leaves.get(e)
    if found is not None:
        return ops.cast(found.trace(ops), real)
    if e.is_number:
        return ops.const(float(e), real)  # type: ignore[arg-type]
    if getattr(e, "is_integer", False):
        try:
            return ops.cast(ops.index(b.symbols.expression(e)), real)
        except UnsupportedError:
            if not e.args:
                raise
    name = type(e).__name__
    args = [_float(b, ops, a, leaves, real) for a in e.args]
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
    raise _unknown(b, "float", e)
