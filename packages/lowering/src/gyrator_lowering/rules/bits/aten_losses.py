"""Losses and their gradients with the bits of ATen's CPU kernels (`numerics="bitwise"`).

ATen stores the loss of each element and takes its sum or mean by the kernels of `aten.sum` and
`aten.mean`. It multiplies gradients by a constant, which has been divided by the number of
elements, before the incoming gradient.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from gyrator_ir.expr import Expr, contiguous_strides
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.bits.aten_sums import aten_mean, aten_sum, integers
from gyrator_lowering.rules.loss import MEAN, NONE, nll_backward
from gyrator_lowering.rules.pointwise import Scalar, elementwise
from gyrator_lowering.table import FallbackToAten

_DTYPES = (DType.F32, DType.F64)


def mse(b: LoopBuilder, x: TensorValue, y: TensorValue, reduction: int = MEAN) -> TensorValue:
    """`aten.mse_loss`."""
    return _loss(b, lambda ops, p, q: (p - q) * (p - q), x, y, reduction)


def smooth_l1(
    b: LoopBuilder, x: TensorValue, y: TensorValue, reduction: int = MEAN, beta: float = 1.0
) -> TensorValue:
    """`aten.smooth_l1_loss`."""
    if not beta > 0:
        raise FallbackToAten

    def fn(ops: Tracer, p: Value, q: Value) -> Value:
        z = ops.abs(p - q)
        return ops.where(ops.ge(z, beta), z - 0.5 * float(beta), z * 0.5 * z / float(beta))

    return _loss(b, fn, x, y, reduction)


def huber(
    b: LoopBuilder, x: TensorValue, y: TensorValue, reduction: int = MEAN, delta: float = 1.0
) -> TensorValue:
    """`aten.huber_loss`."""

    def fn(ops: Tracer, p: Value, q: Value) -> Value:
        z = ops.abs(p - q)
        return ops.where(ops.ge(z, delta), (z - 0.5 * float(delta)) * float(delta), z * 0.5 * z)

    return _loss(b, fn, x, y, reduction)


def mse_backward(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, y: TensorValue, reduction: int
) -> TensorValue:
    """`aten.mse_loss_backward`."""
    return _gradient(b, lambda ops, d: d, 2.0, grad, x, y, reduction)


def clamped_backward(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, y: TensorValue, reduction: int, width: float
) -> TensorValue:
    """`aten.smooth_l1_loss_backward` and `aten.huber_loss_backward`, which are equal if the width
    is 1. With another one the result depends on whether ATen uses vectors."""
    if width != 1:
        raise FallbackToAten

    def slope(ops: Tracer, d: Value) -> Value:
        side = ops.where(ops.gt(d, 0.0), ops.const(1.0, d.dtype), -1.0)
        return ops.where(ops.ge(ops.abs(d), 1.0), side, d)

    return _gradient(b, slope, 1.0, grad, x, y, reduction)


def nll_loss_backward(b: LoopBuilder, *args: Any) -> TensorValue:
    """`aten.nll_loss_backward`; with weights, ATen multiplies by them last."""
    grad, x, _, weight, reduction, _, total = args
    if weight is not None and reduction == MEAN:
        raise FallbackToAten
    _check(b, grad, x, total)
    return nll_backward(b, *args)


def _check(b: LoopBuilder, *args: TensorValue) -> None:
    """Raise FallbackToAten unless all tensors are of `f32` or all of `f64`."""
    if b.out.dtype not in _DTYPES or any(t.dtype is not b.out.dtype for t in args):
        raise FallbackToAten


def _loss(
    b: LoopBuilder, fn: Scalar, x: TensorValue, y: TensorValue, reduction: int
) -> TensorValue:
    _check(b, x, y)
    if reduction == NONE:
        return elementwise(b, fn, (x, y))
    strides = contiguous_strides(x.shape)
    if x.shape != y.shape or any(t.strides != strides for t in (x, y)):
        raise FallbackToAten  # the layout of the elements' losses
    each = b.temp(x.shape, x.dtype, x)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        return fn(ops, ops.load(x, index), ops.load(y, index))

    b.pointwise_into(each, body)
    return (aten_mean if reduction == MEAN else aten_sum)(b, each)


def _gradient(
    b: LoopBuilder,
    slope: Scalar,
    factor: float,
    grad: TensorValue,
    x: TensorValue,
    y: TensorValue,
    reduction: int,
) -> TensorValue:
    """Return `factor * slope(x - y) * grad`, with the factor divided by the number of elements for
    a mean."""
    _check(b, grad, x, y)
    if reduction == MEAN:
        factor /= max(prod(integers(x.shape)), 1)

    def fn(ops: Tracer, g: Value, p: Value, q: Value) -> Value:
        return slope(ops, p - q) * factor * g

    return elementwise(b, fn, (grad, x, y))
