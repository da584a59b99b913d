"""Softmax, its logarithm, and their gradients."""

from collections.abc import Sequence
from typing import Any

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import Expr
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.pointwise import Scalar
from gyrator_lowering.rules.reduction import reduce_at, reduce_into, split, unsqueezed
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder

NEGATIVE_INFINITY = float("-inf")


def _dims(x: TensorValue, dim: int) -> tuple[int, ...]:
    return (dim % x.ndim,) if x.ndim else ()


def _statistics(
    b: LoopBuilder, x: TensorValue, dims: tuple[int, ...], dtype: DType
) -> tuple[TensorValue, TensorValue]:
    """Return max and sum of exp(x - max) along `dims`, as views that broadcast against x."""
    outer, _ = split(x, dims)
    top, total = b.temp(outer, dtype, x), b.temp(outer, dtype, x)
    reduce_into(b, ReduceKind.ONLINE_SOFTMAX, x, dims, [top, total], dtype)
    return unsqueezed(top, x.ndim, dims), unsqueezed(total, x.ndim, dims)


def statistics(b: LoopBuilder, x: TensorValue, dim: int) -> tuple[TensorValue, ...]:
    """`prims.prepare_softmax_online`: the maximum along `dim`, and the sum of `exp(x -
    maximum)`."""
    top, total = b.outs
    assert top is not None and total is not None
    row_statistics = _statistics(b, x, _dims(x, dim), x.dtype.compute)
    return b.copy(row_statistics[0], top), b.copy(row_statistics[1], total)


def softmax(ops: Tracer, x: Value, top: Value, total: Value) -> Value:
    """Return `exp(x - max) / sum(exp(x - max))`."""
    return ops.exp(x - top) / total


def safe_softmax(ops: Tracer, x: Value, top: Value, total: Value) -> Value:
    """Return softmax, or 0 in rows whose elements are all minus infinity."""
    value = softmax(ops, x, top, total)
    return ops.where(ops.eq(top, NEGATIVE_INFINITY), ops.const(0.0, x.dtype), value)


def log_softmax(ops: Tracer, x: Value, top: Value, total: Value) -> Value:
    """Return `x - max - log(sum(exp(x - max)))`."""
    return x - top - ops.log(total)


def forward(fn: Scalar) -> Rule:
    """Return the rule of `fn(ops, x, max, sum)`, in the compute dtype, rounded once."""

    def rule(b: LoopBuilder, x: TensorValue, dim: int, *_: Any, **__: Any) -> TensorValue:
        out = b.out
        if not out.dtype.is_float:  # ATen takes no integers but empty tensors of them
            raise FallbackToAten
        dtype = out.dtype.compute
        statistics = _statistics(b, x, _dims(x, dim), dtype)

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            value = ops.cast(ops.load(x, index), dtype)
            return fn(ops, value, *[ops.get(s, index) for s in statistics])

        return b.pointwise(body, out)

    return rule


def backward(logarithm: bool) -> Rule:
    """Return the rule of the gradient of softmax (or of log softmax), from its result `y`."""

    def rule(
        b: LoopBuilder, grad: TensorValue, y: TensorValue, dim: int, *_: Any, **__: Any
    ) -> TensorValue:
        out = b.out
        dtype = y.dtype.compute
        dims = _dims(y, dim)
        total = b.temp(split(y, dims)[0], dtype, y)

        def terms(ops: Tracer, index: Sequence[Expr]) -> Any:
            g = ops.cast(ops.load(grad, index), dtype)
            return g if logarithm else (g, ops.load(y, index))

        kind = ReduceKind.SUM if logarithm else ReduceKind.DOT
        reduce_at(b, kind, y, dims, [total], dtype, terms)
        broadcast_total = unsqueezed(total, y.ndim, dims)

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            g = ops.cast(ops.load(grad, index), dtype)
            p = ops.cast(ops.load(y, index), dtype)
            if logarithm:
                return g - ops.exp(p) * ops.get(broadcast_total, index)
            return (g - ops.get(broadcast_total, index)) * p

        return b.pointwise(body, out)

    return rule


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("prims.prepare_softmax_online.default")(statistics)
    table.rule("aten._softmax.default")(forward(softmax))
    table.rule("aten._safe_softmax.default")(forward(safe_softmax))
    table.rule("aten._log_softmax.default")(forward(log_softmax))
    table.rule("aten._softmax_backward_data.default")(backward(logarithm=False))
    table.rule("aten._log_softmax_backward_data.default")(backward(logarithm=True))
