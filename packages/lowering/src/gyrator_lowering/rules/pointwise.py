"""Arithmetic, comparisons, logic and elementary functions."""

from collections.abc import Callable
from struct import pack, unpack
from typing import Any

import torch

from gyrator_ir.body.nodes import Check
from gyrator_ir.expr import ONE
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import Arg, operand, promoted_dtype
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.extern import emit
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder
from gyrator_lowering.torch_bridge.dtypes import TO_TORCH
from gyrator_lowering.torch_bridge.schema import info_of

Scalar = Callable[..., Value]
"""`fn(ops, a, b, ...)`, from values of one dtype to a value."""

UNARY_FLOAT = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan "
    "asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid"
)
"""Rows of the op table that convert integers to floats."""

COMPARISONS = "eq ne lt le gt ge"
FLOAT_BINARY = "atan2 hypot copysign"


def elementwise(
    b: LoopBuilder,
    fn: Scalar,
    args: tuple[Arg, ...],
    dtype: DType | None = None,
    *,
    exact: int | None = None,
) -> TensorValue:
    """Apply `fn` to arguments as `dtype` (by default the dtype of the result), computed in its
    compute dtype.

    Numbers, scalars and wide integers are rounded to `dtype` first, except the scalar at the
    position `exact`: eager reads the second factor and most divisors in the compute dtype.
    """
    kind = b.out.dtype if dtype is None else dtype

    def body(ops: Tracer, index: tuple[Any, ...]) -> Value:
        values = []
        for place, a in enumerate(args):
            narrow = _is_wide_integer(a) or (place != exact and _is_scalar(a))
            a = a if place == exact else _rounded(a, kind)
            values.append(operand(ops, a, index, kind if narrow else kind.compute))
        return fn(ops, *[ops.wide(v) for v in values])

    return b.pointwise(body)


def _is_wide_integer(arg: Arg) -> bool:
    """Return whether eager rounds the argument when it is combined with narrow floats, which cannot
    represent it."""
    return (
        isinstance(arg, TensorValue)
        and bool(arg.shape)
        and not arg.dtype.is_float
        and arg.dtype.size > 1
    )


def _is_scalar(arg: Arg) -> bool:
    return not isinstance(arg, (bool, int, float)) and not getattr(arg, "shape", ())


def _is_number(arg: Arg) -> bool:
    """Return whether the argument is one number for all elements."""
    return isinstance(arg, (bool, int, float)) or _is_scalar(arg)


def _rounded(arg: Arg, dtype: DType) -> Arg:
    """Return a number rounded to a narrow dtype; other arguments unchanged."""
    if isinstance(arg, (int, float)) and dtype.is_narrow_float:
        return float(torch.tensor(float(arg), dtype=TO_TORCH[dtype]))
    return arg


def polynomial(ops: Tracer, x: Value, coefficients: tuple[float, ...]) -> Value:
    """Return a polynomial, whose coefficients begin with that of the highest power, by Horner's
    rule."""
    result: Any = coefficients[0]
    for c in coefficients[1:]:
        result = ops.fma(x, result, c)
    value: Value = result
    return value


def _row(op: str) -> Scalar:
    return lambda ops, *args: ops.let(op, *args)


def simple(fn: Scalar, arity: int) -> Rule:
    """Return the rule of an op whose arguments and result are computed in the result's dtype."""

    def rule(b: LoopBuilder, *args: Arg) -> TensorValue:
        return elementwise(b, fn, args[:arity])

    return rule


def with_numbers(fn: Scalar, arity: int) -> Rule:
    """Return the rule of an op on `arity` tensors whose other arguments `fn` takes as they are."""

    def rule(b: LoopBuilder, *args: Any) -> TensorValue:
        def body(ops: Tracer, *values: Value) -> Value:
            return fn(ops, *values, *args[arity:])

        return elementwise(b, body, args[:arity])

    return rule


def comparison(op: str) -> Rule:
    """Return the rule of a comparison, computed in the promoted dtype of its arguments."""

    def rule(b: LoopBuilder, x: Arg, y: Arg) -> TensorValue:
        return elementwise(b, _row(op), (x, y), promoted_dtype((x, y)))

    return rule


def predicate(on_float: Scalar) -> Rule:
    """Return the rule of a test of one value that is false for integers."""

    def rule(b: LoopBuilder, x: TensorValue) -> TensorValue:
        if x.dtype.is_float:
            return elementwise(b, on_float, (x,), x.dtype)
        return b.pointwise(lambda ops, _: ops.const(False, DType.BOOL))

    return rule


def unchanged_for_integers(op: str) -> Rule:
    """Return the rule of a rounding function."""

    def rule(b: LoopBuilder, x: TensorValue) -> TensorValue:
        if x.dtype.is_float:
            return elementwise(b, _row(op), (x,))
        return b.copy(x, b.out)

    return rule


def truth(fn: Scalar) -> Rule:
    """Return the rule of a logical op, whose arguments are first compared with 0."""

    def rule(b: LoopBuilder, *args: TensorValue) -> TensorValue:
        def body(ops: Tracer, index: tuple[Any, ...]) -> Value:
            return fn(ops, *[as_bool(ops, ops.get(a, index)) for a in args])

        return b.pointwise(body)

    return rule


def as_bool(ops: Tracer, value: Value) -> Value:
    """Return `value != 0`."""
    return value if value.dtype is DType.BOOL else ops.ne(value, 0)


def _plus(ops: Tracer, x: Value, y: Value, alpha: Arg, dtype: DType) -> Value:
    """Return `x + alpha * y`, with `alpha` rounded to `dtype`; floats are rounded once."""
    if isinstance(alpha, (bool, int, float)) and alpha == 1:
        return x + y
    factor = operand(ops, _rounded(alpha, dtype), (), x.dtype)
    return ops.fma(y, factor, x) if x.dtype.is_float else x + y * factor


def _minus(ops: Tracer, x: Value, y: Value, alpha: Arg, dtype: DType) -> Value:
    if isinstance(alpha, (bool, int, float)) and alpha == 1:
        return x - y
    return _plus(ops, x, -y, alpha, dtype)


def scaled(ops: Tracer, value: Value, alpha: Arg) -> Value:
    """Return `value * alpha`; `value` itself if `alpha` is 1."""
    if isinstance(alpha, (bool, int, float)) and alpha == 1:
        return value
    return ops.let("mul", value, operand(ops, alpha, (), value.dtype))


def add(b: LoopBuilder, x: Arg, y: Arg, *more: Arg, alpha: Arg = 1) -> TensorValue:
    """`x + alpha * y`; logical or for booleans."""
    alpha = more[0] if more else alpha
    dtype = b.out.dtype
    if dtype is DType.BOOL:
        return elementwise(b, _row("bit_or") if alpha else lambda ops, p, _: p, (x, y))
    return elementwise(b, lambda ops, p, q: _plus(ops, p, q, alpha, dtype), (x, y))


def sub(b: LoopBuilder, x: Arg, y: Arg, *more: Arg, alpha: Arg = 1) -> TensorValue:
    """`x - alpha * y`."""
    alpha = more[0] if more else alpha
    dtype = b.out.dtype
    return elementwise(b, lambda ops, p, q: _minus(ops, p, q, alpha, dtype), (x, y))


def rsub(b: LoopBuilder, x: Arg, y: Arg, *more: Arg, alpha: Arg = 1) -> TensorValue:
    """`y - alpha * x`."""
    return sub(b, y, x, *more, alpha=alpha)


def mul(b: LoopBuilder, x: Arg, y: Arg) -> TensorValue:
    """`x * y`; logical and for booleans."""
    op = "bit_and" if b.out.dtype is DType.BOOL else "mul"
    return elementwise(b, _row(op), (x, y), exact=1)


def floor_quotient(ops: Tracer, x: Value, y: Value) -> Value:
    """Return `floor(x / y)` of floats as eager rounds it, from the exact remainder."""
    rest = ops.fmod(x, y)
    quotient = (x - rest) / y
    differs = ops.ne(rest, 0.0) & (ops.lt(y, 0.0) ^ ops.lt(rest, 0.0))
    quotient = ops.where(differs, quotient - 1.0, quotient)
    down = ops.floor(quotient)
    nearest = ops.where(ops.gt(quotient - down, 0.5), down + 1.0, down)
    plain = x / y
    exact = ops.where(ops.ne(quotient, 0.0), nearest, ops.copysign(ops.const(0.0, x.dtype), plain))
    return ops.where(ops.eq(y, 0.0), plain, exact)


def _integer_divisor(y: Arg, dtype: DType) -> int | None:
    """Return a divisor that is a constant integer and not 0 in `dtype`."""
    value = getattr(y, "value", y)
    if not isinstance(value, (bool, int)) or dtype is DType.BOOL:
        return None
    return dtype.wrap(int(value)) or None


def _quotient(b: LoopBuilder, row: str, x: Arg, y: Arg) -> TensorValue:
    """Return a quotient or remainder of integers. Kernels report a zero in `y` where eager does.

    Raises:
        FallbackToAten: if `y` is no tensor and not a known number, or is of booleans.
    """
    target, dtype = b.targets.get(b.out.device.type), b.out.dtype
    divisor = _integer_divisor(y, dtype)
    if divisor is not None:
        return elementwise(b, _row(row), (x, divisor))
    unchecked = target is not None and target.capabilities.unchecked_division
    if dtype is DType.BOOL or not (unchecked or isinstance(y, TensorValue)):
        raise FallbackToAten

    def body(ops: Tracer, p: Value, q: Value) -> Value:
        if not unchecked:
            zero = ops.where(ops.eq(q, 0), ops.const(1, DType.I64), 0)
            ops.bind(zero, ONE, check=Check.DIVISION)
        return ops.let(row, p, q)

    return elementwise(b, body, (x, y))


def _reciprocal(b: LoopBuilder, y: Arg) -> float | None:
    """Return the reciprocal by which ATen multiplies on the device instead of dividing by `y`."""
    value, target = getattr(y, "value", y), b.targets.get(b.out.device.type)
    if target is None or not target.capabilities.reciprocals or not isinstance(value, (int, float)):
        return None
    narrow = b.out.dtype.compute is DType.F32
    try:
        reciprocal = 1.0 / (single(value) if narrow else value)
        return single(reciprocal) if narrow else reciprocal
    except (OverflowError, ZeroDivisionError):
        return None


def single(value: float) -> float:
    """Round a number to `f32`."""
    (rounded,) = unpack("f", pack("f", value))
    assert isinstance(rounded, float)
    return rounded


def div(b: LoopBuilder, x: Arg, y: Arg, *, rounding_mode: str | None = None) -> TensorValue:
    """True, truncated or floored quotient. Hosts report integer division by zero."""
    if rounding_mode is None:
        factor = _reciprocal(b, y)
        if factor is not None:
            return elementwise(b, _row("mul"), (x, factor), exact=1)
        return elementwise(b, _row("div"), (x, y), exact=1)
    if b.out.dtype.is_float:
        if rounding_mode == "floor":
            return elementwise(b, floor_quotient, (x, y), exact=1)
        kind = b.out.dtype.compute if _is_number(y) else b.out.dtype  # to which eager rounds first
        return elementwise(
            b, lambda ops, p, q: ops.trunc(ops.wide(ops.cast(p / q, kind))), (x, y), exact=1
        )
    if _integer_divisor(y, b.out.dtype) == -1:
        return elementwise(b, _row("neg"), (x,))
    return _quotient(b, "floordiv" if rounding_mode == "floor" else "truncdiv", x, y)


def _aten_result(b: LoopBuilder, op: Any, x: Arg, y: Arg) -> TensorValue:
    """Return the result of an ATen op with the spec of the current node's result."""
    fake = b.node.meta["val"]
    reason = "a part of an op on integers that ATen checks or computes"
    (value,) = emit(b, info_of(op), (x, y), {}, (fake,), frozenset((0,)), reason)
    assert isinstance(value, TensorValue)
    return value


def least_common_multiple(b: LoopBuilder, x: Arg, y: Arg) -> TensorValue:
    """`|x / gcd * y|`, or 0 if both are 0; ATen's divides the least integer by -1."""
    divisor = _aten_result(b, torch.ops.aten.gcd.default, x, y)
    kind = b.out.dtype if b.out.dtype.size > 2 else DType.I32  # C computes narrow integers in int

    def body(ops: Tracer, p: Value, q: Value, common: Value) -> Value:
        return ops.abs(ops.truncdiv(p, common) * q)

    return elementwise(b, body, (x, y, divisor), kind)


def floor_divide(b: LoopBuilder, x: Arg, y: Arg) -> TensorValue:
    """`floor(x / y)`."""
    return div(b, x, y, rounding_mode="floor")


def modulo(float_op: str, integer_op: str) -> Rule:
    """Return the rule of `remainder` or `fmod`."""

    def rule(b: LoopBuilder, x: Arg, y: Arg) -> TensorValue:
        if b.out.dtype.is_float:
            return elementwise(b, _row(float_op), (x, y))
        if _integer_divisor(y, b.out.dtype) == -1:
            return elementwise(b, lambda ops, p: ops.const(0, p.dtype), (x,))
        return _quotient(b, integer_op, x, y)

    return rule


def power(ops: Tracer, x: Value, n: float) -> Value:
    """Return `x**n` for a constant `n`, by products and roots where eager uses them."""
    if n == 0:
        return ops.const(1, x.dtype)
    if n == 1:
        return x
    if n == 2:
        return x * x
    if n == 3:
        return x * x * x
    if x.dtype.is_float:
        if n == 0.5:
            return ops.sqrt(x)
        if n == -0.5:
            return 1.0 / ops.sqrt(x)
        if n == -1:
            return 1.0 / x
        if n == -2:
            return 1.0 / (x * x)
        return ops.pow(x, float(n))
    result: Value | None = None
    square, rest = x, int(n)
    while rest:
        if rest & 1:
            result = square if result is None else result * square
        rest >>= 1
        if rest:
            square = square * square
    return x if result is None else result


def pow_scalar(b: LoopBuilder, x: TensorValue, exponent: Arg) -> TensorValue:
    """`x**exponent` for a number."""
    if not isinstance(exponent, (bool, int, float)):
        return pow_tensor(b, x, exponent)
    if b.out.dtype is DType.BOOL or (not b.out.dtype.is_float and not 0 <= exponent <= 64):
        raise FallbackToAten
    number = _rounded(exponent, b.out.dtype)
    if abs(exponent) == 0.5 and b.out.dtype is DType.F16 and b.out.device.is_host:
        # Eager does not use roots here: the power of negative infinity is not NaN.
        return elementwise(b, lambda ops, p: ops.pow(p, float(exponent)), (x,))
    assert isinstance(number, (int, float))
    return elementwise(b, lambda ops, p: power(ops, p, number), (x,))


def pow_tensor(b: LoopBuilder, x: Arg, exponent: Arg) -> TensorValue:
    """`x**exponent` by C's pow; integer powers of integers stay in ATen."""
    if not b.out.dtype.is_float:
        raise FallbackToAten
    return elementwise(b, _row("pow"), (x, exponent))


def absolute(b: LoopBuilder, x: TensorValue) -> TensorValue:
    """`|x|`."""
    if x.dtype.is_signed:
        return elementwise(b, _row("abs"), (x,))
    return b.copy(x, b.out)


def extremum(op: str) -> Rule:
    """Return the rule of `maximum`, `minimum`, `fmax` or `fmin`."""
    without_nan = {"fmax": "maximum", "fmin": "minimum"}.get(op, op)
    boolean = "bit_or" if without_nan == "maximum" else "bit_and"

    def rule(b: LoopBuilder, x: Arg, y: Arg) -> TensorValue:
        dtype = b.out.dtype
        chosen = boolean if dtype is DType.BOOL else op if dtype.is_float else without_nan
        return elementwise(b, _row(chosen), (x, y))

    return rule


def sign(ops: Tracer, x: Value) -> Value:
    """Return -1, 0 or 1 (0 for NaN)."""
    if not x.dtype.is_signed:
        return x if x.dtype is DType.BOOL else ops.where(ops.gt(x, 0), ops.const(1, x.dtype), 0)
    one, zero = ops.const(1, x.dtype), ops.const(0, x.dtype)
    return ops.where(ops.gt(x, 0), one, ops.where(ops.lt(x, 0), ops.const(-1, x.dtype), zero))


def round_(b: LoopBuilder, x: TensorValue, *, decimals: int = 0) -> TensorValue:
    """Round half to even, at a decimal digit."""
    if not x.dtype.is_float:
        return b.copy(x, b.out)
    if decimals == 0:
        return elementwise(b, _row("round"), (x,))
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return elementwise(b, lambda ops, p: ops.round(p * scale) / scale, (x,))
    return elementwise(b, lambda ops, p: ops.round(p / scale) * scale, (x,))


def clamp(
    b: LoopBuilder,
    x: TensorValue,
    low: Arg | None = None,
    high: Arg | None = None,
    **named: Arg | None,
) -> TensorValue:
    """Clamp to [low, high]; `high` wins if the two cross. NaN and the sign of zero are kept."""
    low = named.get("min", low)
    high = named.get("max", high)
    args = tuple(a for a in (low, high) if a is not None)

    def body(ops: Tracer, p: Value, *limits: Value) -> Value:
        rest = list(limits)
        boolean = p.dtype is DType.BOOL
        if low is not None:
            p = ops.let("bit_or" if boolean else "maximum", rest.pop(0), p)
        if high is not None:
            p = ops.let("bit_and" if boolean else "minimum", rest.pop(0), p)
        return p

    return elementwise(b, body, (x, *args))


def clamp_max(b: LoopBuilder, x: TensorValue, high: Arg) -> TensorValue:
    """Clamp from above."""
    return clamp(b, x, None, high)


def where(b: LoopBuilder, condition: TensorValue, x: Arg, y: Arg) -> TensorValue:
    """`x` if the condition holds, else `y`."""
    dtype = b.out.dtype

    def body(ops: Tracer, index: tuple[Any, ...]) -> Value:
        cond = as_bool(ops, ops.get(condition, index))
        return ops.where(cond, operand(ops, x, index, dtype), operand(ops, y, index, dtype))

    return b.pointwise(body)


def masked_fill(b: LoopBuilder, x: TensorValue, mask: TensorValue, value: Arg) -> TensorValue:
    """`value` if the mask is set, else `x`."""
    return where(b, mask, value, x)


def lerp(b: LoopBuilder, x: Arg, end: Arg, weight: Arg) -> TensorValue:
    """`x + weight * (end - x)`, computed from the nearer end as in eager mode."""

    def body(ops: Tracer, p: Value, q: Value, w: Value) -> Value:
        near = ops.lt(ops.abs(w), 0.5)
        return ops.where(near, p + w * (q - p), q - (q - p) * (1.0 - w))

    exact = None if isinstance(weight, TensorValue) else 2
    return elementwise(b, body, (x, end, weight), exact=exact)


def addcmul(b: LoopBuilder, x: Arg, p: Arg, q: Arg, *, value: Arg = 1) -> TensorValue:
    """`x + value * p * q`."""
    return elementwise(b, lambda ops, a, c, d: a + scaled(ops, c, value) * d, (x, p, q))


def addcdiv(b: LoopBuilder, x: Arg, p: Arg, q: Arg, *, value: Arg = 1) -> TensorValue:
    """`x + value * p / q`."""
    return elementwise(b, lambda ops, a, c, d: a + scaled(ops, c, value) / d, (x, p, q))


def nan_to_num(
    b: LoopBuilder,
    x: TensorValue,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> TensorValue:
    """Replace NaN and infinities: by default by 0 and the largest numbers of the dtype."""
    if not x.dtype.is_float:
        return b.copy(x, b.out)
    largest = LARGEST[x.dtype]
    above = largest if posinf is None else posinf
    below = -largest if neginf is None else neginf

    def body(ops: Tracer, p: Value) -> Value:
        infinite = ops.isinf(p)
        bound = ops.where(ops.gt(p, 0.0), ops.const(above, p.dtype), below)
        return ops.where(ops.isnan(p), 0.0 if nan is None else nan, ops.where(infinite, bound, p))

    return elementwise(b, body, (x,))


LARGEST = {
    DType.F64: 1.7976931348623157e308,
    DType.F32: 3.4028234663852886e38,
    DType.F16: 65504.0,
    DType.BF16: 3.3895313892515355e38,
    DType.F8E4M3: 448.0,
    DType.F8E5M2: 57344.0,
}
"""The largest finite number of each float type."""


def xlogy(ops: Tracer, x: Value, y: Value) -> Value:
    """Return `x * log(y)`, or 0 if x is 0 and y is not NaN."""
    product = ops.where(ops.eq(x, 0.0), ops.const(0.0, x.dtype), x * ops.log(y))
    return ops.where(ops.isnan(y), y, product)


def logaddexp(ops: Tracer, x: Value, y: Value) -> Value:
    """Return `log(exp(x) + exp(y))` without overflow."""
    top = ops.maximum(x, y)
    same = ops.isinf(x) & ops.eq(x, y)
    return ops.where(same, x, top + ops.log1p(ops.exp(-ops.abs(x - y))))


def signed_infinity(positive: bool) -> Scalar:
    """Return the test for one infinity."""
    return lambda ops, x: ops.isinf(x) & (ops.gt(x, 0.0) if positive else ops.lt(x, 0.0))


def signbit(b: LoopBuilder, x: TensorValue) -> TensorValue:
    """Return whether the sign bit is set."""
    if x.dtype.is_float:
        return elementwise(b, _row("signbit"), (x,), x.dtype)
    if not x.dtype.is_signed:
        return b.pointwise(lambda ops, _: ops.const(0, DType.BOOL))
    return elementwise(b, lambda ops, p: ops.lt(p, 0), (x,), x.dtype)


def nextafter(b: LoopBuilder, x: TensorValue, towards: TensorValue) -> TensorValue:
    """The next number after `x`. Kernels widen narrow floats, so these are ATen's."""
    if b.out.dtype.is_narrow_float:
        raise FallbackToAten
    return elementwise(b, _row("nextafter"), (x, towards))


def ldexp(b: LoopBuilder, x: TensorValue, exponent: TensorValue) -> TensorValue:
    """A float times two to an integer, of which ATen takes the lowest 32 bits."""
    if exponent.dtype is DType.BOOL:
        raise FallbackToAten  # raises
    dtype = b.out.dtype.compute

    def body(ops: Tracer, index: tuple[Any, ...]) -> Value:
        power = ops.cast(ops.wide(operand(ops, exponent, index, exponent.dtype)), DType.I32)
        return ops.let("ldexp", ops.wide(operand(ops, x, index, dtype)), power)

    return b.pointwise(body)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for op in UNARY_FLOAT.split():
        table.rule(f"aten.{op}")(simple(_row(op), 1))
    for op in COMPARISONS.split():
        table.rule(f"aten.{op}.Tensor", f"aten.{op}.Scalar")(comparison(op))
    for op in FLOAT_BINARY.split():
        table.rule(f"aten.{op}")(simple(_row(op), 2))
    table.rule("aten.nextafter.default")(nextafter)
    table.rule("aten.ldexp.Tensor")(ldexp)
    for op in ("floor", "ceil", "trunc"):
        table.rule(f"aten.{op}")(unchanged_for_integers(op))
    for op in ("maximum", "minimum", "fmax", "fmin"):
        table.rule(f"aten.{op}.default")(extremum(op))
    _register_arithmetic(table)
    _register_logic(table)


def _register_arithmetic(table: TableBuilder) -> None:
    table.rule("aten.add.Tensor", "aten.add.Scalar")(add)
    table.rule("aten.sub.Tensor", "aten.sub.Scalar")(sub)
    table.rule("aten.rsub.Tensor", "aten.rsub.Scalar")(rsub)
    table.rule("aten.mul.Tensor", "aten.mul.Scalar")(mul)
    modes = [f"aten.div.{kind}{mode}" for kind in ("Tensor", "Scalar") for mode in ("", "_mode")]
    table.rule(*modes)(div)
    table.rule("aten.floor_divide.default", "aten.floor_divide.Scalar")(floor_divide)
    kinds = ("Tensor", "Scalar", "Scalar_Tensor")
    table.rule(*(f"aten.remainder.{kind}" for kind in kinds))(modulo("remainder", "mod"))
    table.rule(*(f"aten.fmod.{kind}" for kind in kinds[:2]))(modulo("fmod", "rem"))
    table.rule("aten.pow.Tensor_Scalar")(pow_scalar)
    table.rule("aten.pow.Tensor_Tensor", "aten.pow.Scalar")(pow_tensor)
    table.rule("aten.abs.default")(absolute)
    table.rule("aten.lcm.default")(least_common_multiple)
    table.rule("aten.neg.default")(simple(_row("neg"), 1))
    table.rule("aten.reciprocal.default")(simple(lambda ops, x: 1.0 / x, 1))
    table.rule("aten.frac.default")(simple(lambda ops, x: x - ops.trunc(x), 1))
    table.rule("aten.sign.default", "aten.sgn.default")(simple(sign, 1))
    table.rule("aten.round.default", "aten.round.decimals")(round_)
    table.rule("aten.clamp.default", "aten.clamp.Tensor")(clamp)
    table.rule("aten.clamp_min.default", "aten.clamp_min.Tensor")(clamp)
    table.rule("aten.clamp_max.default", "aten.clamp_max.Tensor")(clamp_max)
    table.rule("aten.lerp.Scalar", "aten.lerp.Tensor")(lerp)
    table.rule("aten.addcmul.default")(addcmul)
    table.rule("prims.fma.default")(simple(_row("fma"), 3))
    table.rule("aten.addcdiv.default")(addcdiv)
    table.rule("aten.xlogy")(simple(xlogy, 2))
    table.rule("aten.logaddexp.default")(simple(logaddexp, 2))
    table.rule("aten.nan_to_num.default")(nan_to_num)


def _register_logic(table: TableBuilder) -> None:
    for name, op in (("and", "bit_and"), ("or", "bit_or"), ("xor", "bit_xor")):
        kinds = ("Tensor", "Scalar", "Scalar_Tensor")
        table.rule(*(f"aten.bitwise_{name}.{kind}" for kind in kinds))(simple(_row(op), 2))
        table.rule(f"aten.logical_{name}.default")(truth(_row(op)))
    for name, op in (("left", "shl"), ("right", "shr")):
        kinds = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
        overloads = [f"aten.bitwise_{name}_shift.{kind}" for kind in kinds]
        overloads += [f"aten.__{name[0]}shift__.{kind}" for kind in ("Tensor", "Scalar")]
        table.rule(*overloads)(simple(_row(op), 2))
    table.rule("aten.bitwise_not.default")(simple(_row("bit_not"), 1))
    table.rule("aten.logical_not.default")(truth(lambda ops, x: ~x))
    table.rule("aten.isnan.default")(predicate(_row("isnan")))
    table.rule("aten.isinf.default")(predicate(_row("isinf")))
    table.rule("aten.isposinf.default")(predicate(signed_infinity(positive=True)))
    table.rule("aten.isneginf.default")(predicate(signed_infinity(positive=False)))
    table.rule("aten.signbit.default")(signbit)
    table.rule("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther")(where)
    table.rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")(masked_fill)
