"""Softmax, its logarithm, and their gradients."""

from collections.abc import Sequence
from typing import Any

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import Expr
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.reduction import reduce_at, reduce_into, split, unsqueezed
from gyrator_lowering.table import Rule, TableBuilder

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


def softmax(b: LoopBuilder, x: TensorValue, dim: int, *_: Any, **__: Any) -> TensorValue:
    """`exp(x - max) / sum(exp(x - max))`, in the compute dtype, rounded once."""
    out = b.out
    dtype = out.dtype.compute
    top, total = _statistics(b, x, _dims(x, dim), dtype)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        value = ops.cast(ops.load(x, index), dtype)
        return ops.exp(value - ops.get(top, index)) / ops.get(total, index)

    return b.pointwise(body, out)


def safe_softmax(b: LoopBuilder, x: TensorValue, dim: int, dtype: Any = None) -> TensorValue:
    """Softmax that is 0 in rows whose elements are all minus infinity."""
    out = b.out
    kind = out.dtype.compute
    top, total = _statistics(b, x, _dims(x, dim), kind)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        m = ops.get(top, index)
        value = ops.exp(ops.cast(ops.load(x, index), kind) - m) / ops.get(total, index)
        return ops.where(ops.eq(m, NEGATIVE_INFINITY), ops.const(0.0, kind), value)

    return b.pointwise(body, out)


def log_softmax(b: LoopBuilder, x: TensorValue, dim: int, *_: Any, **__: Any) -> TensorValue:
    """`x - max - log(sum(exp(x - max)))`."""
    out = b.out
    dtype = out.dtype.compute
    top, total = _statistics(b, x, _dims(x, dim), dtype)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        value = ops.cast(ops.load(x, index), dtype)
        return value - ops.get(top, index) - ops.log(ops.get(total, index))

    return b.pointwise(body, out)


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
    table.rule("aten._softmax.default")(softmax)
    table.rule("aten._safe_softmax.default")(safe_softmax)
    table.rule("aten._log_softmax.default")(log_softmax)
    table.rule("aten._softmax_backward_data.default")(backward(logarithm=False))
    table.rule("aten._log_softmax_backward_data.default")(backward(logarithm=True))
