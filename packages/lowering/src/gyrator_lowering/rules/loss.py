"""Losses that reduce to a scalar, and their gradients."""

from collections.abc import Sequence

from gyrator_ir.body.nodes import Check, ReduceKind
from gyrator_ir.expr import ONE, Expr, product_of
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import At, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue, broadcast_shape
from gyrator_lowering.rules.pointwise import Scalar
from gyrator_lowering.rules.scatter import to_output
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder

NONE, MEAN = 0, 1
"""ATen's numbers of the reductions; 2 is the sum."""


def _total(b: LoopBuilder, at: At, shape: Sequence[Expr], dtype: DType, like: Spec) -> TensorValue:
    result = b.temp((), dtype, like)
    b.reduction(ReduceKind.SUM, lambda ops, _, r: at(ops, r), (), shape, [result], dtype)
    return result


def reduced(b: LoopBuilder, at: At, shape: tuple[Expr, ...], reduction: int) -> TensorValue:
    """Return an elementwise loss unreduced, its mean, or its sum."""
    out = b.out
    dtype = out.dtype.compute
    if reduction == NONE:
        return b.pointwise(at, out)
    total = _total(b, at, shape, dtype, out)
    if reduction != MEAN:
        return to_output(b, total, out)
    n = product_of(shape)
    return b.pointwise(lambda ops, _: ops.load(total, ()) / operand(ops, n, (), dtype), out)


def _of_one_type(*tensors: TensorValue | None) -> None:
    """Leave arguments of several dtypes to ATen, which refuses them, or rounds in between."""
    if len({t.dtype for t in tensors if t is not None}) > 1:
        raise FallbackToAten


def loss(
    b: LoopBuilder, fn: Scalar, args: Sequence[TensorValue | None], reduction: int
) -> TensorValue:
    """Reduce `fn(ops, *args)`; an argument that is None stays None."""
    dtype = b.out.dtype.compute
    tensors = [a for a in args if a is not None]

    def at(ops: Tracer, index: Sequence[Expr]) -> Value:
        return fn(ops, *[None if a is None else ops.cast(ops.get(a, index), dtype) for a in args])

    return reduced(b, at, broadcast_shape(tensors), reduction)


def gradient(
    b: LoopBuilder,
    fn: Scalar,
    grad: TensorValue,
    args: Sequence[TensorValue | None],
    reduction: int,
) -> TensorValue:
    """Return `grad * fn(ops, *args)`, divided by the number of elements for a mean."""
    _of_one_type(*args)
    out = b.out
    dtype = out.dtype.compute
    n = product_of(out.shape)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        values = [None if a is None else ops.cast(ops.get(a, index), dtype) for a in args]
        value = fn(ops, *values) * ops.cast(ops.get(grad, index), dtype)
        return value / operand(ops, n, (), dtype) if reduction == MEAN else value

    return b.pointwise(body, out)


# Elementwise losses ---------------------------------------------------------------------------


def mse(b: LoopBuilder, x: TensorValue, y: TensorValue, reduction: int = MEAN) -> TensorValue:
    """`(x - y)**2`."""
    return loss(b, lambda ops, p, q: (p - q) * (p - q), (x, y), reduction)


def mse_backward(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, y: TensorValue, reduction: int
) -> TensorValue:
    """Gradient of mse."""
    return gradient(b, lambda ops, p, q: (p - q) * 2.0, grad, (x, y), reduction)


def _huber(width: float, scale: float) -> tuple[Scalar, Scalar]:
    """Return `scale * huber(d) / width` and its derivative: quadratic below `width`, then
    linear."""

    def value(ops: Tracer, p: Value, q: Value) -> Value:
        d = ops.abs(p - q)
        if width == 0:
            return d
        return ops.where(ops.lt(d, width), d * d * (0.5 * scale / width), (d - 0.5 * width) * scale)

    def slope(ops: Tracer, p: Value, q: Value) -> Value:
        d = p - q
        side = ops.where(ops.lt(d, 0.0), ops.const(-scale, d.dtype), scale)
        if width == 0:
            return ops.where(ops.eq(d, 0.0), ops.const(0.0, d.dtype), side)
        return ops.where(ops.ge(ops.abs(d), width), side, d * (scale / width))

    return value, slope


def smooth_l1(
    b: LoopBuilder, x: TensorValue, y: TensorValue, reduction: int = MEAN, beta: float = 1.0
) -> TensorValue:
    """Quadratic below beta, then linear with slope 1."""
    return loss(b, _huber(float(beta), 1.0)[0], (x, y), reduction)


def smooth_l1_backward(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, y: TensorValue, reduction: int, beta: float
) -> TensorValue:
    """Gradient of smooth_l1."""
    return gradient(b, _huber(float(beta), 1.0)[1], grad, (x, y), reduction)


def huber(
    b: LoopBuilder, x: TensorValue, y: TensorValue, reduction: int = MEAN, delta: float = 1.0
) -> TensorValue:
    """Quadratic below delta, then linear with slope delta."""
    _of_one_type(x, y)
    return loss(b, _huber(float(delta), float(delta))[0], (x, y), reduction)


def huber_backward(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, y: TensorValue, reduction: int, delta: float
) -> TensorValue:
    """Gradient of huber."""
    return gradient(b, _huber(float(delta), float(delta))[1], grad, (x, y), reduction)


def _cross_entropy(ops: Tracer, x: Value, t: Value, weight: Value | None) -> Value:
    inside = ops.ge(x, 0.0) & ops.le(x, 1.0) & ops.ge(t, 0.0) & ops.le(t, 1.0)
    ops.bind(ops.where(inside, ops.const(0, DType.I64), 1), ONE, check=Check.RUNTIME)
    hit = ops.maximum(ops.log(x), -100.0)
    miss = ops.maximum(ops.log1p(-x), -100.0)
    value = (t - 1.0) * miss - t * hit
    return value if weight is None else value * weight


def binary_cross_entropy(
    b: LoopBuilder,
    x: TensorValue,
    t: TensorValue,
    weight: TensorValue | None = None,
    reduction: int = MEAN,
) -> TensorValue:
    """`-(t log x + (1 - t) log(1 - x))`, each logarithm at least -100."""
    _of_one_type(x, t, weight)
    return loss(b, _cross_entropy, (x, t, weight), reduction)


def binary_cross_entropy_backward(
    b: LoopBuilder,
    grad: TensorValue,
    x: TensorValue,
    t: TensorValue,
    weight: TensorValue | None = None,
    reduction: int = MEAN,
) -> TensorValue:
    """Gradient of binary_cross_entropy."""

    def slope(ops: Tracer, p: Value, q: Value, w: Value | None) -> Value:
        value = (p - q) / ops.maximum((1.0 - p) * p, 1e-12)
        return value if w is None else value * w

    return gradient(b, slope, grad, (x, t, weight), reduction)


def with_logits(
    b: LoopBuilder,
    x: TensorValue,
    t: TensorValue,
    weight: TensorValue | None = None,
    positive: TensorValue | None = None,
    reduction: int = MEAN,
) -> TensorValue:
    """Binary cross entropy of sigmoid(x), without overflow."""
    _of_one_type(x, t, weight, positive)

    def value(ops: Tracer, p: Value, q: Value, w: Value | None, more: Value | None) -> Value:
        soft = ops.log1p(ops.exp(-ops.abs(p))) + ops.maximum(-p, 0.0)
        if more is not None:
            soft = soft * ((more - 1.0) * q + 1.0)
        result = (1.0 - q) * p + soft
        return result if w is None else result * w

    return loss(b, value, (x, t, weight, positive), reduction)


# Negative log likelihood ----------------------------------------------------------------------


def _class_dim(x: TensorValue) -> int:
    return 1 if x.ndim > 1 else 0


def _target_class(
    ops: Tracer, x: TensorValue, target: TensorValue, index: Sequence[Expr], ignored: int
) -> tuple[Value, Expr]:
    """Return whether a target counts, and the target as a class index."""
    t = ops.cast(ops.load(target, index), DType.I64)
    counts = ops.ne(t, ignored)
    return counts, ops.bind(t, x.shape[_class_dim(x)], mask=counts)


def nll_forward(
    b: LoopBuilder,
    x: TensorValue,
    target: TensorValue,
    weight: TensorValue | None,
    reduction: int,
    ignored: int,
) -> tuple[TensorValue, TensorValue]:
    """Minus the value (times the weight) at each target class, and the sum of the weights."""
    out, out_total = b.outs
    assert out is not None and out_total is not None
    dtype = out.dtype.compute
    d = _class_dim(x)

    def class_weight(ops: Tracer, index: Sequence[Expr]) -> Value:
        counts, c = _target_class(ops, x, target, index, ignored)
        if weight is None:
            return ops.cast(counts, dtype)
        return ops.cast(ops.load(weight, (c,), counts), dtype)

    def value(ops: Tracer, index: Sequence[Expr]) -> Value:
        counts, c = _target_class(ops, x, target, index, ignored)
        at = (*index[:d], c, *index[d:])
        picked = -ops.cast(ops.load(x, at, counts), dtype)
        return picked if weight is None else picked * class_weight(ops, index)

    if reduction == NONE and x.ndim > 1:
        zero = b.pointwise(lambda ops, _: ops.const(0, out_total.dtype.compute), out_total)
        return b.pointwise(value, out), zero
    total = _total(b, value, target.shape, dtype, out)
    weights = _total(b, class_weight, target.shape, dtype, out)
    if reduction == MEAN:
        result = b.pointwise(lambda ops, _: ops.load(total, ()) / ops.load(weights, ()), out)
    else:
        result = to_output(b, total, out)
    if reduction == NONE:
        return result, b.pointwise(lambda ops, _: ops.const(0, dtype), out_total)
    return result, to_output(b, weights, out_total)


def nll_backward(
    b: LoopBuilder,
    grad: TensorValue,
    x: TensorValue,
    target: TensorValue,
    weight: TensorValue | None,
    reduction: int,
    ignored: int,
    total: TensorValue,
) -> TensorValue:
    """Gradient of nll_loss: minus grad (times the weight) at each target class, 0 elsewhere."""
    out = b.out
    dtype = out.dtype.compute
    d = _class_dim(x)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        target_index = (*index[:d], *index[d + 1 :]) if target.ndim else ()
        t = ops.cast(ops.load(target, target_index), DType.I64)
        hit = ops.eq(t, ops.index(index[d])) & ops.ne(t, ignored)
        g = ops.cast(ops.get(grad, target_index), dtype)
        if weight is not None:
            g = g * ops.cast(ops.load(weight, index[d : d + 1]), dtype)
        if reduction == MEAN:
            g = g / ops.cast(ops.load(total, ()), dtype)
        return ops.where(hit, -g, 0.0)

    return b.pointwise(body, out)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    rules: dict[str, Rule] = {
        "mse_loss": mse,
        "mse_loss_backward": mse_backward,
        "smooth_l1_loss": smooth_l1,
        "smooth_l1_loss_backward": smooth_l1_backward,
        "huber_loss": huber,
        "huber_loss_backward": huber_backward,
        "binary_cross_entropy": binary_cross_entropy,
        "binary_cross_entropy_backward": binary_cross_entropy_backward,
        "binary_cross_entropy_with_logits": with_logits,
        "nll_loss_forward": nll_forward,
        "nll_loss2d_forward": nll_forward,
        "nll_loss_backward": nll_backward,
        "nll_loss2d_backward": nll_backward,
    }
    for op, rule in rules.items():
        table.rule(f"aten.{op}.default")(rule)
