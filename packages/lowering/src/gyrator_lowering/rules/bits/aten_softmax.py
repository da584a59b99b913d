"""Softmax of `f32` along the last dimension with the bits of ATen's CPU kernels
(`numerics="bitwise"`).

ATen computes each row by itself, on one thread. It adds in the lanes of a vector, then the lanes
themselves in pairs; a row that is shorter than a vector it adds one value after another. The
exponential and the logarithm are Sleef's in the whole row.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from math import inf, prod
from operator import add
from typing import Any

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import Const, Expr
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import At, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.bits.aten_formulas import sleef_exp, sleef_log
from gyrator_lowering.rules.bits.aten_sums import integers
from gyrator_lowering.rules.reduction import reduce_to_buffer
from gyrator_lowering.table import FallbackToAten, Rule


def softmax(lanes: int) -> Rule:
    """Return the rule of `aten._softmax`, for vectors of so many elements."""
    return _softmax(lanes, lambda ops, top, value: value)


def safe_softmax(lanes: int) -> Rule:
    """Return the rule of `aten._safe_softmax`: 0 in rows whose elements are all minus infinity."""

    def result(ops: Tracer, top: Value, value: Value) -> Value:
        return ops.where(ops.eq(top, -inf), 0.0, value)

    return _softmax(lanes, result)


def _softmax(lanes: int, result: Callable[[Tracer, Value, Value], Value]) -> Rule:
    def rule(b: LoopBuilder, x: TensorValue, dim: int, *_: Any, **__: Any) -> TensorValue:
        _check(b, dim, x)
        top = _maximum(b, x)
        total = _sum(b, x, lanes, lambda ops, at: _exponential(ops, x, top, at))

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            row = index[:-1]
            value = _exponential(ops, x, top, index) * (1.0 / ops.load(total, row))
            return result(ops, ops.load(top, row), value)

        return b.pointwise(body, b.out)

    return rule


def log_softmax(lanes: int) -> Rule:
    """Return the rule of `aten._log_softmax`."""

    def rule(b: LoopBuilder, x: TensorValue, dim: int, *_: Any) -> TensorValue:
        _check(b, dim, x)
        top = _maximum(b, x)
        total = _sum(b, x, lanes, lambda ops, at: _exponential(ops, x, top, at))

        def logarithm(ops: Tracer, row: Sequence[Expr]) -> Value:
            return sleef_log(ops, ops.load(total, row))

        logs = b.temp(x.shape[:-1], DType.F32, x)
        b.pointwise_into(logs, logarithm)

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            row = index[:-1]
            return ops.load(x, index) - ops.load(top, row) - ops.load(logs, row)

        return b.pointwise(body, b.out)

    return rule


def backward(lanes: int, logarithm: bool) -> Rule:
    """Return the rule of the gradient of softmax (or of log softmax), from its result `y`."""

    def rule(b: LoopBuilder, grad: TensorValue, y: TensorValue, dim: int, *_: Any) -> TensorValue:
        _check(b, dim, grad, y)
        size = _length(grad)
        has_rest = size > lanes and size % lanes > 0
        if has_rest and not logarithm and prod(integers(grad.shape[:-1])) > 1:
            # ATen's compiler made two versions of the loop over rows, of which one contracts a
            # product that is added to a part of a vector. The number of threads decides between
            # them.
            raise FallbackToAten

        def term(ops: Tracer, at: Sequence[Expr]) -> Value:
            return ops.load(grad, at) if logarithm else ops.load(grad, at) * ops.load(y, at)

        def contracted(ops: Tracer, total: Value, at: Sequence[Expr]) -> Value:
            return ops.fma(ops.load(grad, at), ops.load(y, at), total)

        total = _sum(b, grad, lanes, term, None if logarithm else contracted)

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            g, p, s = ops.load(grad, index), ops.load(y, index), ops.load(total, index[:-1])
            return ops.fma(-sleef_exp(ops, p), s, g) if logarithm else (g - s) * p

        return b.pointwise(body, b.out)

    return rule


def _check(b: LoopBuilder, dim: int, *args: TensorValue) -> None:
    """Raise FallbackToAten unless ATen computes rows of `f32` along the last dimension."""
    x = args[0]
    if any(t.dtype is not DType.F32 for t in args) or b.out.dtype is not DType.F32 or not x.ndim:
        raise FallbackToAten
    if dim % x.ndim != x.ndim - 1:
        raise FallbackToAten
    if not isinstance(x.shape[-1], Const) or not x.shape[-1].value:
        raise FallbackToAten


def _length(x: TensorValue) -> int:
    size = x.shape[-1]
    assert isinstance(size, Const)
    return size.value


def _exponential(ops: Tracer, x: TensorValue, top: TensorValue, at: Sequence[Expr]) -> Value:
    return sleef_exp(ops, ops.load(x, at) - ops.load(top, at[:-1]))


def _maximum(b: LoopBuilder, x: TensorValue) -> TensorValue:
    return reduce_to_buffer(b, ReduceKind.MAX, x, (x.ndim - 1,), DType.F32)


def _sum(
    b: LoopBuilder,
    x: TensorValue,
    lanes: int,
    term: At,
    contracted: Callable[[Tracer, Value, Sequence[Expr]], Value] | None = None,
) -> TensorValue:
    """Return the sums of the terms of the rows of `x`.

    Args:
        b: the builder.
        x: a tensor of the shape of the terms.
        lanes: the number of elements in a vector.
        term: the term at an index.
        contracted: adds the term at an index to a sum; ATen's compiler contracts a product that is
            added to a part of a vector in a single row, but not one that is added to a whole
            vector.
    """
    plus = contracted or (lambda ops, total, at: total + term(ops, at))
    size, rows = _length(x), x.shape[:-1]
    if size < lanes:
        return _short_sum(b, x, term)
    whole, rest = divmod(size, lanes)
    sums = b.temp((*rows, Const(lanes)), DType.F32, x)

    def of_lane(ops: Tracer, index: Sequence[Expr], at: Sequence[Expr]) -> Value:
        *row, lane = index
        return term(ops, (*row, at[0] * lanes + lane))

    b.reduction(ReduceKind.SUM, of_lane, sums.shape, (Const(whole),), [sums], DType.F32)

    def of_row(ops: Tracer, row: Sequence[Expr]) -> Value:
        values = [ops.load(sums, (*row, Const(k))) for k in range(lanes)]
        for k in range(rest):
            values[k] = plus(ops, values[k], (*row, Const(whole * lanes + k)))
        while len(values) > 1:
            half = len(values) // 2
            values = [p + q for p, q in zip(values[:half], values[half:], strict=True)]
        return values[0]

    return _of_rows(b, x, of_row)


def _short_sum(b: LoopBuilder, x: TensorValue, term: At) -> TensorValue:
    """Return the sums of rows that are shorter than a vector."""

    def of_row(ops: Tracer, row: Sequence[Expr]) -> Value:
        return reduce(add, [term(ops, (*row, Const(k))) for k in range(_length(x))])

    return _of_rows(b, x, of_row)


def _of_rows(b: LoopBuilder, x: TensorValue, fn: At) -> TensorValue:
    result = b.temp(x.shape[:-1], DType.F32, x)
    b.pointwise_into(result, fn)
    return result
