"""Layer norm, RMS norm and group norm, and their gradients."""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ONE, Const, Expr, product_of
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import At, Index, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.reduction import (
    count,
    reduce_at,
    reduce_into,
    split,
    squeezed,
    unsqueezed,
)
from gyrator_lowering.table import TableBuilder


def rounded(b: LoopBuilder, value: TensorValue, out: Spec | None) -> TensorValue | None:
    """Return a statistic with the spec of a result: unchanged if dtype and strides are the same."""
    if out is None:
        return None
    if value.dtype is out.dtype and value.shape == out.shape and value.strides == out.strides:
        return value
    return b.copy(value, out)


def layer_norm(
    b: LoopBuilder,
    x: TensorValue,
    shape: Sequence[Any],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[TensorValue | None, ...]:
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last dimensions; mean and 1/sqrt."""
    dtype = x.dtype.compute
    _, dims = _parts(x, shape)
    stat = tuple(ONE if d in dims else s for d, s in enumerate(x.shape))
    mean, squares = (b.temp(stat, dtype, x) for _ in range(2))
    into = [squeezed(mean, dims), squeezed(squares, dims), None]
    reduce_into(b, ReduceKind.WELFORD, x, dims, into, dtype)

    def scaled(ops: Tracer, value: Value, index: Index) -> Value:
        return affine(ops, value, weight, bias, index)

    return _normalized(b, x, mean, squares, count(x, dims), eps, lambda index: index, scaled)


def _normalized(
    b: LoopBuilder,
    x: TensorValue,
    mean: TensorValue,
    squares: TensorValue,
    n: Any,
    eps: float,
    statistic_index: Callable[[Index], Index],
    scaled: Callable[[Tracer, Value, Index], Value],
    spread: Callable[[TensorValue], TensorValue] = lambda statistic: statistic,
) -> tuple[TensorValue | None, ...]:
    """Return `scaled` of `(x - mean) / sqrt(squares / n + eps)`, and the statistics.
    `statistic_index` maps the index of an element to that of its statistics, once these are
    `spread`."""
    out, out_mean, out_rstd = b.wanted()
    dtype = mean.dtype
    rstd = b.temp(mean.shape, dtype, x)

    def inverse(ops: Tracer, index: Index) -> Value:
        return ops.rsqrt(ops.get(squares, index) / operand(ops, n, (), dtype) + eps)

    b.pointwise_into(rstd, inverse)
    means, factors = (mean, rstd) if out is None else (spread(mean), spread(rstd))

    def body(ops: Tracer, index: Index) -> Value:
        value = ops.cast(ops.load(x, index), dtype)
        at = statistic_index(index)
        return scaled(ops, (value - ops.get(means, at)) * ops.get(factors, at), index)

    result = None if out is None else b.pointwise(body, out)
    return result, rounded(b, mean, out_mean), rounded(b, rstd, out_rstd)


def _parts(x: TensorValue, shape: Sequence[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the leading dimensions, and the last ones, which have the sizes `shape`."""
    first = x.ndim - len(shape)
    return tuple(range(first)), tuple(range(first, x.ndim))


def element(x: TensorValue, dtype: DType) -> At:
    """Return the function that reads an element as `dtype`."""
    return lambda ops, index: ops.cast(ops.load(x, index), dtype)


def affine(
    ops: Tracer,
    value: Value,
    weight: TensorValue | None,
    bias: TensorValue | None,
    index: Sequence[Expr],
) -> Value:
    """Return `value * weight + bias`; either may be missing."""
    if weight is not None:
        value = value * ops.cast(ops.get(weight, index), value.dtype)
    if bias is not None:
        value = value + ops.cast(ops.get(bias, index), value.dtype)
    return value


def _sum_of(
    b: LoopBuilder, like: TensorValue, dims: Sequence[int], dtype: DType, at: At
) -> TensorValue:
    """Sum `at(ops, index)` over `dims` of the index space of `like`; the result broadcasts along
    them."""
    result = b.temp(split(like, dims)[0], dtype, like)
    reduce_at(b, ReduceKind.SUM, like, dims, [result], dtype, at)
    return unsqueezed(result, like.ndim, dims)


def _sum_to(
    b: LoopBuilder, like: TensorValue, dims: Sequence[int], dtype: DType, at: At, out: Spec
) -> TensorValue:
    """Sum `at` over the leading dimensions `dims`, with the spec of a parameter's gradient."""
    direct = out.dtype is dtype
    result = b.buffer(out) if direct else b.temp(split(like, dims)[0], dtype, like)
    reduce_at(b, ReduceKind.SUM, like, dims, [result], dtype, at)
    return result if direct else b.copy(result, out)


def layer_norm_backward(
    b: LoopBuilder,
    grad: TensorValue,
    x: TensorValue,
    shape: Sequence[Any],
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    """Gradients of layer norm with respect to input, weight and bias."""
    dtype = x.dtype.compute

    def centred(ops: Tracer, index: Sequence[Expr]) -> Value:
        value = ops.cast(ops.load(x, index), dtype)
        scale = ops.cast(ops.get(rstd, index), dtype)
        return (value - ops.cast(ops.get(mean, index), dtype)) * scale

    return _norm_gradients(b, grad, x, shape, centred, rstd, weight, mask)


def _norm_gradients(
    b: LoopBuilder,
    grad: TensorValue,
    x: TensorValue,
    shape: Sequence[Any],
    centred: At,
    rstd: TensorValue,
    weight: TensorValue | None,
    mask: Sequence[bool],
    subtract_mean: bool = True,
) -> tuple[TensorValue | None, ...]:
    """dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = grad * weight; dw; db."""
    dtype = x.dtype.compute
    gradient = element(grad, dtype)
    to_input, *to_parameters = b.wanted(mask)
    lead, dims = _parts(x, shape)
    n = count(x, dims)

    def weighted(ops: Tracer, index: Sequence[Expr]) -> Value:
        g = gradient(ops, index)
        return g if weight is None else g * ops.cast(ops.get(weight, index), dtype)

    input_gradient = None
    if to_input is not None:
        total = _sum_of(b, x, dims, dtype, weighted) if subtract_mean else None
        along = _sum_of(b, x, dims, dtype, lambda ops, i: weighted(ops, i) * centred(ops, i))

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            size = operand(ops, n, (), dtype)
            value = weighted(ops, index)
            if total is not None:
                value = value - ops.get(total, index) / size
            value = value - centred(ops, index) * (ops.get(along, index) / size)
            return value * ops.cast(ops.get(rstd, index), dtype)

        input_gradient = b.pointwise(body, to_input)
    terms: tuple[At, At] = (lambda ops, i: gradient(ops, i) * centred(ops, i)), gradient
    parameters = (
        None if out is None else _sum_to(b, x, lead, dtype, term, out)
        for term, out in zip(terms, to_parameters, strict=False)
    )
    return input_gradient, *parameters


def rms_norm(
    b: LoopBuilder,
    x: TensorValue,
    shape: Sequence[Any],
    weight: TensorValue | None,
    eps: float | None,
) -> tuple[TensorValue | None, ...]:
    """`x / sqrt(mean(x**2) + eps) * weight` over the last dimensions, and 1/sqrt(...)."""
    out, out_rstd = b.wanted()
    dtype = x.dtype.compute
    _, dims = _parts(x, shape)
    stat = tuple(ONE if d in dims else s for d, s in enumerate(x.shape))
    total, rstd = b.temp(stat, dtype, x), b.temp(stat, dtype, x)
    into = [squeezed(total, dims)]
    reduce_into(b, ReduceKind.SUM, x, dims, into, dtype, lambda ops, v: ops.wide(v) * ops.wide(v))
    n = count(x, dims)
    least = EPSILON[x.dtype.compute] if eps is None else eps
    b.pointwise_into(
        rstd, lambda ops, i: ops.rsqrt(ops.get(total, i) / operand(ops, n, (), dtype) + least)
    )

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        value = ops.cast(ops.load(x, index), dtype) * ops.get(rstd, index)
        return affine(ops, value, weight, None, index)

    return None if out is None else b.pointwise(body, out), rounded(b, rstd, out_rstd)


EPSILON = {DType.F32: 1.1920928955078125e-07, DType.F64: 2.220446049250313e-16}
"""The machine epsilon, RMS norm's default `eps`."""


def rms_norm_backward(
    b: LoopBuilder,
    grad: TensorValue,
    x: TensorValue,
    shape: Sequence[Any],
    rstd: TensorValue,
    weight: TensorValue | None,
    mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    """Gradients of RMS norm with respect to input and weight."""
    dtype = x.dtype.compute

    def scaled(ops: Tracer, index: Sequence[Expr]) -> Value:
        return ops.cast(ops.load(x, index), dtype) * ops.cast(ops.get(rstd, index), dtype)

    return _norm_gradients(b, grad, x, shape, scaled, rstd, weight, mask, subtract_mean=False)


def group_norm(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    n: Any,
    c: Any,
    hw: Any,
    groups: int,
    eps: float,
) -> tuple[TensorValue | None, ...]:
    """Normalise over the channels of a group and all positions."""
    dtype = x.dtype.compute
    batch, channels, *space = x.shape
    size = channels // groups
    stat = (batch, b.symbols.size(groups))
    mean, squares = (b.temp(stat, dtype, x) for _ in range(2))
    b.reduction(
        ReduceKind.WELFORD,
        lambda ops, i, r: ops.load(x, (i[0], i[1] * size + r[0], *r[1:])),
        stat,
        (size, *space),
        [mean, squares, None],
        dtype,
    )

    def scaled(ops: Tracer, value: Value, index: Index) -> Value:
        return affine(ops, value, weight, bias, index[1:2])

    total = product_of((size, *space))
    if _reads_channels(b, x, size, space):

        def spread(statistic: TensorValue) -> TensorValue:
            """Return a statistic of every channel, of which vectors are loaded."""
            each = b.temp((*stat, size), dtype, x)
            b.pointwise_into(each, lambda ops, i: ops.get(statistic, i[:2]))
            return evolve(each, shape=(batch, channels), strides=(channels, ONE))

        return _normalized(b, x, mean, squares, total, eps, lambda i: i[:2], scaled, spread)

    def group(index: Index) -> Index:
        return (index[0], index[1] // size)

    return _normalized(b, x, mean, squares, total, eps, group, scaled)


def _reads_channels(b: LoopBuilder, x: TensorValue, size: Expr, space: Sequence[Expr]) -> bool:
    """Return whether kernels read vectors of the channels of several groups of `size` at once."""
    target = b.targets.get(x.device.type)
    most = 0 if target is None else target.heuristics.column_parts
    adjacent = x.strides[1] is ONE and any(n is not ONE for n in space)
    return adjacent and isinstance(size, Const) and 1 < size.value <= most


def group_norm_backward(
    b: LoopBuilder,
    grad: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    n: Any,
    c: Any,
    hw: Any,
    groups: int,
    mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    """Gradients of group norm, from sums over positions of grad and grad * x for each channel."""
    to_input, *to_parameters = b.wanted(mask)
    dtype = x.dtype.compute
    channels = x.shape[1]
    size = channels // groups
    dims = tuple(range(2, x.ndim))
    gradient = element(grad, dtype)

    def stat(ops: Tracer, value: TensorValue, index: Sequence[Expr]) -> Value:
        return ops.cast(ops.load(value, (index[0], index[1] // size)), dtype)

    def centred(ops: Tracer, index: Sequence[Expr]) -> Value:
        value = ops.cast(ops.load(x, index), dtype) - stat(ops, mean, index)
        return value * stat(ops, rstd, index)

    plain = squeezed(_sum_of(b, x, dims, dtype, gradient), dims)
    along = squeezed(
        _sum_of(b, x, dims, dtype, lambda ops, i: gradient(ops, i) * centred(ops, i)), dims
    )
    results: list[TensorValue | None] = [None]
    if to_input is not None:
        results[0] = _group_input_gradient(
            b, x, plain, along, weight, (gradient, centred, stat), rstd, size, groups, to_input
        )
    for total, out in zip((along, plain), to_parameters, strict=True):
        result = None
        if out is not None:
            result = b.temp((channels,), dtype, x)
            reduce_into(b, ReduceKind.SUM, total, (0,), [result], dtype)
        results.append(None if result is None else rounded(b, result, out))
    return tuple(results)


def _group_input_gradient(
    b: LoopBuilder,
    x: TensorValue,
    plain: TensorValue,
    along: TensorValue,
    weight: TensorValue | None,
    at: tuple[At, At, Any],
    rstd: TensorValue,
    size: Expr,
    groups: int,
    out: Spec,
) -> TensorValue:
    gradient, centred, stat = at
    dtype = x.dtype.compute
    batch, _, *space = x.shape
    shape = (batch, b.symbols.size(groups))

    def over_group(source: TensorValue) -> TensorValue:
        total = b.temp(shape, dtype, x)

        def term(ops: Tracer, i: Sequence[Expr], r: Sequence[Expr]) -> Value:
            channel = i[1] * size + r[0]
            value = ops.load(source, (i[0], channel))
            return (
                value if weight is None else value * ops.cast(ops.load(weight, (channel,)), dtype)
            )

        b.reduction(ReduceKind.SUM, term, shape, (size,), [total], dtype)
        return total

    first, second = over_group(plain), over_group(along)
    n = product_of((size, *space))

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        g = gradient(ops, index)
        if weight is not None:
            g = g * ops.cast(ops.load(weight, index[1:2]), dtype)
        total = operand(ops, n, (), dtype)
        value: Value = g - stat(ops, first, index) / total
        value = value - centred(ops, index) * (stat(ops, second, index) / total)
        scale: Value = stat(ops, rstd, index)
        return value * scale

    return b.pointwise(body, out)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.native_layer_norm.default")(layer_norm)
    table.rule("aten.native_layer_norm_backward.default")(layer_norm_backward)
    table.rule("aten._fused_rms_norm.default")(rms_norm)
    table.rule("aten._fused_rms_norm_backward.default")(rms_norm_backward)
    table.rule("aten.native_group_norm.default")(group_norm)
    table.rule("aten.native_group_norm_backward.default")(group_norm_backward)
