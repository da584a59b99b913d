"""Activations, elementwise losses and dropout masks, and their gradients, each rounded once."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from attrs import evolve

from gyrator_ir.expr import Expr
from gyrator_ir.target import Heuristics
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import Arg
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.pointwise import elementwise, polynomial, simple, with_numbers
from gyrator_lowering.table import TableBuilder

ROOT_HALF = math.sqrt(0.5)
TWICE_ROOT_2_OVER_PI = 2.0 * math.sqrt(2.0 / math.pi)
CUBIC = 0.044715
SIXTH = 0.1666666716337204
"""One sixth in `f32`: eager's constant in the gradient of hardsigmoid, for all dtypes."""
LOG2_E = 1.0 / math.log(2.0)
LOG2_TAIL = (
    -2.8897655e-11, 1.9562131e-09, -5.7399071e-08, 9.5642020e-07, -9.9064000e-06, 6.4289285e-05,
    -2.2548617e-04, -1.2906930e-04, 7.1182828e-03, -5.2562647e-02, -4.5918059e-01, -1.1511086,
    -1.0,
)  # fmt: skip
"""Coefficients, that of the highest power first, of a minimax fit in float64 (Lawson's iteration)
to `log2(erfc(x / sqrt(2)) / 2)` for x in [0, 13.1]. The power of two has a relative error of
4e-7 for x below 1.5, 2e-6 below 4, 2e-4 below 9 and 4e-3 below 13.1. Beyond, it falls to 0."""
MILLS_ABOVE = (0.0143599296, 0.108001664, 0.341636866, 0.49999997)
MILLS_BELOW = (0.0360071175, 0.270320803, 0.89783287, 1.4811542, 1.0)
"""Coefficients, those of the highest powers first, of polynomials with the quotient
`erfc(x / sqrt(2)) * exp(x * x / 2) / 2` for x in [0, 14], from a minimax fit in float64. Its
relative error is 7e-8, and `x * x / 2` times as much where that is more than 1."""
FURTHEST = 14.0
"""Beyond, the tail is less than any 16-bit float."""
_ALL_OF_MISH = 20.0
"""From here on, mish is its argument in all types."""


def relu(ops: Tracer, x: Value) -> Value:
    """Return x, or 0 if x is below 0; negative zeros and NaN are kept."""
    if x.dtype is DType.BOOL:
        return x
    return ops.where(ops.lt(x, 0), ops.const(0, x.dtype), x)


def silu(ops: Tracer, x: Value) -> Value:
    """Return `x / (1 + exp(-x))`."""
    return x / (1.0 + ops.exp(-x))


def silu_backward(ops: Tracer, grad: Value, x: Value) -> Value:
    """Return the gradient of silu."""
    s = 1.0 / (1.0 + ops.exp(-x))
    return grad * s * (1.0 + x * (1.0 - s))


def normal_cdf(ops: Tracer, x: Value) -> Value:
    """Return `(1 + erf(x / sqrt(2))) / 2` of `f32` as exactly as 16-bit floats require.

    The lower tail is a power of two, so that it does not cancel.
    """
    tail = ops.exp2(polynomial(ops, ops.abs(x), LOG2_TAIL))
    return ops.where(ops.lt(x, 0.0), tail, 1.0 - tail)


def normal_pdf(ops: Tracer, x: Value) -> Value:
    """Return `exp(-x * x / 2) / sqrt(2 * pi)` as a power of two."""
    return ops.exp2(ops.fma(x * x, -0.5 * LOG2_E, -0.5 * math.log2(2.0 * math.pi)))


def normal_cdf_by_quotient(ops: Tracer, x: Value, exp: Value) -> Value:
    """Return `(1 + erf(x / sqrt(2))) / 2` of `f32` from `exp(-x * x / 2)`, with an absolute error
    of about 1e-7, and as exactly as 16-bit floats require."""
    size = ops.abs(x)
    size = ops.where(ops.gt(size, FURTHEST), FURTHEST, size)
    quotient = polynomial(ops, size, MILLS_ABOVE) / polynomial(ops, size, MILLS_BELOW)
    tail = exp * quotient
    return ops.where(ops.lt(x, 0.0), tail, 1.0 - tail)


def gelu(b: LoopBuilder, x: TensorValue, *, approximate: str = "none") -> TensorValue:
    """`x * Phi(x)`, by erf or by its tanh approximation.

    `(1 + tanh(a)) / 2` is `sigmoid(2 * a)`, which is quicker, and does not cancel.
    """

    def exact(ops: Tracer, v: Value) -> Value:
        match quick_way(b):
            case "exp2":
                return v * normal_cdf(ops, v)
            case "quotient":
                return v * normal_cdf_by_quotient(ops, v, ops.exp(v * v * -0.5))
        return v * 0.5 * (1.0 + ops.erf(v * ROOT_HALF))

    def by_tanh(ops: Tracer, v: Value) -> Value:
        return v * ops.sigmoid(
            v * ops.fma(v * v, TWICE_ROOT_2_OVER_PI * CUBIC, TWICE_ROOT_2_OVER_PI)
        )

    return elementwise(b, by_tanh if approximate == "tanh" else exact, (x,))


def gelu_backward(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, *, approximate: str = "none"
) -> TensorValue:
    """Gradient of gelu."""

    def exact(ops: Tracer, g: Value, v: Value) -> Value:
        via = quick_way(b)
        if via == "exp2":
            return g * ops.fma(v, normal_pdf(ops, v), normal_cdf(ops, v))
        exp = ops.exp(v * v * -0.5)
        pdf = exp * (1.0 / math.sqrt(2.0 * math.pi))
        if via == "quotient":
            return g * ops.fma(v, pdf, normal_cdf_by_quotient(ops, v, exp))
        cdf = 0.5 * (1.0 + ops.erf(v * ROOT_HALF))
        return g * (cdf + v * pdf)

    def by_tanh(ops: Tracer, g: Value, v: Value) -> Value:
        square, cubic = v * v, TWICE_ROOT_2_OVER_PI * CUBIC
        s = ops.sigmoid(v * ops.fma(square, cubic, TWICE_ROOT_2_OVER_PI))
        slope = ops.fma(square, 3.0 * cubic, TWICE_ROOT_2_OVER_PI)
        return g * ops.fma(v * (s * (1.0 - s)), slope, s)

    return elementwise(b, by_tanh if approximate == "tanh" else exact, (grad, x))


def quick_way(b: LoopBuilder) -> Literal["exp2", "quotient", "erf"]:
    """Return the quickest way to `(1 + erf(x / sqrt(2))) / 2` of the result's type that is as exact
    as eager mode's."""
    target, dtype = b.targets.get(b.out.device.type), b.out.dtype
    quick = Heuristics() if target is None else target.heuristics
    if quick.quick_exp2 and dtype.is_narrow_float:
        return "exp2"
    return "quotient" if quick.quick_quotients and dtype.compute is DType.F32 else "erf"


def softplus(ops: Tracer, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """Return `log(1 + exp(beta * x)) / beta`, x itself above the threshold."""
    scaled = x * beta
    return ops.where(ops.gt(scaled, threshold), x, ops.log1p(ops.exp(scaled)) / beta)


def softplus_backward(ops: Tracer, g: Value, x: Value, beta: float, threshold: float) -> Value:
    """Return the gradient of softplus."""
    z = ops.exp(x * beta)
    return ops.where(ops.gt(x * beta, threshold), g, g * z / (z + 1.0))


def mish(ops: Tracer, x: Value) -> Value:
    """Return `x * tanh(softplus(x))`.

    With `e = exp(x)` and `n = e * (e + 2)`, it is `x * n / (n + 2)`, for large x as well as x.
    """
    e = ops.exp(ops.where(ops.gt(x, _ALL_OF_MISH), _ALL_OF_MISH, x))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


def mish_backward(ops: Tracer, grad: Value, x: Value) -> Value:
    """Return the gradient of mish.

    The derivative of `n / (n + 2)` is `4 * e * (e + 1) / (n + 2) ** 2`.
    """
    large = ops.gt(x, _ALL_OF_MISH)
    e = ops.exp(ops.where(large, _ALL_OF_MISH, x))
    n = e * (e + 2.0)
    inverse = 1.0 / (n + 2.0)
    slope = ops.where(large, 0.0, 4.0 * e * (e + 1.0) * (inverse * inverse))
    return grad * (n * inverse + x * slope)


def elu(ops: Tracer, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    """Return `scale * x` above 0, else `scale * alpha * (exp(input_scale * x) - 1)`."""
    low = ops.expm1(x * input_scale) * (alpha * scale)
    return ops.where(ops.lt(x, 0.0), low, x * scale)


def elu_backward(
    b: LoopBuilder,
    grad: TensorValue,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    value: TensorValue,
) -> TensorValue:
    """Gradient of elu, from its argument or from its result."""

    def body(ops: Tracer, g: Value, v: Value) -> Value:
        slope = alpha * scale
        if is_result:
            low = g * input_scale * (v + slope)
        else:
            low = g * (input_scale * slope) * ops.exp(v * input_scale)
        return ops.where(ops.gt(v, 0.0), g * scale, low)

    return elementwise(b, body, (grad, value))


def leaky_relu(ops: Tracer, x: Value, slope: float = 0.01) -> Value:
    """Return `x` above 0, else `slope * x`."""
    return ops.where(ops.gt(x, 0.0), x, x * slope)


def leaky_relu_backward(ops: Tracer, g: Value, x: Value, slope: float, *_: Any) -> Value:
    """Return the gradient of leaky relu."""
    return ops.where(ops.gt(x, 0.0), g, g * slope)


def hardtanh(ops: Tracer, x: Value, low: Arg = -1, high: Arg = 1) -> Value:
    """Clamp to [low, high]."""
    return ops.minimum(high, ops.maximum(low, x))


def hardtanh_backward(ops: Tracer, g: Value, x: Value, low: float, high: float) -> Value:
    """Return the gradient of hardtanh: zero at NaN."""
    return ops.where(ops.gt(x, low) & ops.lt(x, high), g, ops.const(0, g.dtype))


def relu6(ops: Tracer, x: Value) -> Value:
    """Clamp `x + 3` to [0, 6]."""
    return ops.minimum(ops.maximum(x + 3.0, 0.0), 6.0)


def hardsigmoid(ops: Tracer, x: Value) -> Value:
    """Return `x + 3`, clamped to [0, 6], divided by 6."""
    return relu6(ops, x) / 6.0


def hardswish(ops: Tracer, x: Value) -> Value:
    """Return `x` times its hardsigmoid, in eager's order."""
    return x * relu6(ops, x) / 6.0


def hardswish_backward(ops: Tracer, g: Value, x: Value) -> Value:
    """Return the gradient of hardswish."""
    middle = g * (x / 3.0 + 0.5)
    zero = ops.const(0.0, g.dtype)
    return ops.where(ops.le(x, -3.0), zero, ops.where(ops.ge(x, 3.0), g, middle))


def hardsigmoid_backward(ops: Tracer, g: Value, x: Value) -> Value:
    """Return the gradient of hardsigmoid."""
    inside = ops.gt(x, -3.0) & ops.lt(x, 3.0)
    return ops.where(inside, g * SIXTH, 0.0)


def log_sigmoid(b: LoopBuilder, x: TensorValue) -> tuple[TensorValue | None, ...]:
    """`-log(1 + exp(-x))`, and the buffer that eager saves for the gradient."""
    out, saved = b.outs
    assert out is not None and saved is not None

    def body(ops: Tracer, v: Value) -> Value:
        return ops.minimum(v, 0.0) - ops.log1p(ops.exp(-ops.abs(v)))

    def result(ops: Tracer, index: Sequence[Expr]) -> Value:
        return body(ops, ops.wide(ops.load(x, index)))

    def buffer(ops: Tracer, index: Sequence[Expr]) -> Value:
        if len(saved.shape) != x.ndim:
            return ops.const(0.0, saved.dtype.compute)
        return ops.exp(-ops.abs(ops.wide(ops.load(x, index))))

    return b.pointwise(result, out), b.pointwise(buffer, saved) if 1 in b.used_results else None


def log_sigmoid_backward(ops: Tracer, g: Value, x: Value, _: TensorValue) -> Value:
    """Return the gradient of log_sigmoid."""
    z = ops.exp(-ops.abs(x))
    negative = ops.lt(x, 0.0)
    deriv = ops.where(negative, ops.const(1.0, x.dtype), 0.0)
    side = ops.where(negative, ops.const(1.0, x.dtype), -1.0)
    return (deriv - side * (z / (1.0 + z))) * g


def threshold(ops: Tracer, x: Value, limit: Arg, value: bool | int | float) -> Value:
    """Return `value` where x is at most the limit, else x."""
    return ops.where(ops.le(x, limit), ops.const(value, x.dtype), x)


def threshold_backward(ops: Tracer, g: Value, x: Value, limit: float) -> Value:
    """Return the gradient of threshold and of relu."""
    return ops.where(ops.le(x, limit), ops.const(0, g.dtype), g)


def logit(ops: Tracer, x: Value, eps: float | None = None) -> Value:
    """Return `log(x / (1 - x))`, with x clamped to [eps, 1 - eps] if eps is given."""
    if eps is not None:
        x = ops.minimum(ops.maximum(x, eps), 1.0 - eps)
    return ops.log(x / (1.0 - x))


def prelu(ops: Tracer, x: Value, weight: Value) -> Value:
    """Return x above 0, else `weight * x`."""
    return ops.where(ops.gt(x, 0.0), x, weight * x)


def prelu_backward(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, weight: TensorValue
) -> tuple[TensorValue, ...]:
    """Gradients of prelu with respect to its argument and, elementwise, to its weight."""
    dx, dw = b.outs
    assert dx is not None and dw is not None

    def body(ops: Tracer, index: Sequence[Expr]) -> tuple[Value, Value]:
        g, v, w = (ops.wide(ops.get(t, index)) for t in (grad, x, weight))
        positive = ops.gt(v, 0.0)
        return ops.where(positive, g, w * g), ops.where(positive, ops.const(0.0, g.dtype), v * g)

    return b.pointwise_many(body, (dx, dw))


def softshrink(ops: Tracer, x: Value, limit: float = 0.5) -> Value:
    """Return 0 within the limit, else `x` moved towards 0 by it; NaN is kept."""
    inside = ops.ge(x, -limit) & ops.le(x, limit)
    return ops.where(inside, x * 0.0, ops.where(ops.gt(x, limit), x - limit, x + limit))


def hardshrink(ops: Tracer, x: Value, limit: float = 0.5) -> Value:
    """Return 0 within the limit, else `x`."""
    inside = ops.ge(x, -limit) & ops.le(x, limit)
    return ops.where(inside, ops.const(0.0, x.dtype), x)


def _halves(x: TensorValue, d: int) -> tuple[Expr, TensorValue, TensorValue]:
    half = x.shape[d] // 2
    shape = (*x.shape[:d], half, *x.shape[d + 1 :])
    first = evolve(x, shape=shape)
    return half, first, evolve(first, offset=x.offset + half * x.strides[d])


def glu(b: LoopBuilder, x: TensorValue, dim: int = -1) -> TensorValue:
    """The first half of a dimension times the sigmoid of the second."""
    _, first, second = _halves(x, dim % x.ndim)
    return elementwise(b, lambda ops, p, q: p * ops.sigmoid(q), (first, second))


def glu_backward(b: LoopBuilder, grad: TensorValue, x: TensorValue, dim: int) -> TensorValue:
    """Gradient of glu."""
    out = b.out
    d = dim % x.ndim
    half, first, second = _halves(x, d)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        i = index[d]
        low = ops.lt(ops.index(i), ops.index(half))
        at = (*index[:d], i % half, *index[d + 1 :])
        g, p, q = (ops.wide(ops.load(t, at)) for t in (grad, first, second))
        s = ops.wide(ops.cast(ops.sigmoid(q), out.dtype))  # eager keeps it in the result
        return ops.where(low, g * s, (1.0 - s) * s * g * p)

    return b.pointwise(body, out)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.relu.default")(simple(relu, 1))
    table.rule("aten.silu.default")(simple(silu, 1))
    table.rule("aten.silu_backward.default")(simple(silu_backward, 2))
    table.rule("aten.gelu.default")(gelu)
    table.rule("aten.gelu_backward.default")(gelu_backward)
    table.rule("aten.softplus.default")(with_numbers(softplus, 1))
    table.rule("aten.softplus_backward.default")(with_numbers(softplus_backward, 2))
    table.rule("aten.mish.default")(simple(mish, 1))
    table.rule("aten.mish_backward.default")(simple(mish_backward, 2))
    table.rule("aten.elu.default")(with_numbers(elu, 1))
    table.rule("aten.elu_backward.default")(elu_backward)
    table.rule("aten.leaky_relu.default")(with_numbers(leaky_relu, 1))
    table.rule("aten.leaky_relu_backward.default")(with_numbers(leaky_relu_backward, 2))
    table.rule("aten.hardtanh.default")(with_numbers(hardtanh, 1))
    table.rule("aten.hardtanh_backward.default")(with_numbers(hardtanh_backward, 2))
    table.rule("aten.hardswish.default")(simple(hardswish, 1))
    table.rule("aten.hardswish_backward.default")(simple(hardswish_backward, 2))
    table.rule("aten.hardsigmoid.default")(simple(hardsigmoid, 1))
    table.rule("aten.hardsigmoid_backward.default")(simple(hardsigmoid_backward, 2))
    table.rule("aten.log_sigmoid_forward.default")(log_sigmoid)
    table.rule("aten.log_sigmoid_backward.default")(with_numbers(log_sigmoid_backward, 2))
    table.rule("aten.threshold.default")(with_numbers(threshold, 1))
    table.rule("aten.threshold_backward.default")(with_numbers(threshold_backward, 2))
    table.rule("aten.logit.default")(with_numbers(logit, 1))
    table.rule("aten._prelu_kernel.default")(simple(prelu, 2))
    table.rule("aten._prelu_kernel_backward.default")(prelu_backward)
    table.rule("aten.softshrink.default")(with_numbers(softshrink, 1))
    table.rule("aten.hardshrink.default")(with_numbers(hardshrink, 1))
    table.rule("aten.glu.default")(glu)
    table.rule("aten.glu_backward.default")(glu_backward)
    table.rule("aten.native_dropout_backward.default")(
        with_numbers(lambda ops, grad, mask, scale: grad * (mask * scale), 2)
    )
    table.rule("aten.sigmoid_backward.default")(simple(lambda ops, g, y: g * (1.0 - y) * y, 2))
    table.rule("aten.tanh_backward.default")(simple(lambda ops, g, y: g * (1.0 - y * y), 2))
