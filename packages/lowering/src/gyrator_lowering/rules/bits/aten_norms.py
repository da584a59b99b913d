"""Layer norm of `f32` with the bits of ATen's CPU kernel (`numerics="bitwise"`).

ATen updates the mean and the squared deviations of each lane of a vector by Welford's algorithm,
in chunks that it merges pairwise, then those of what is left of the row by themselves, and merges
these with one lane after another. Long rows are left to it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from gyrator_ir.expr import Const, Expr, contiguous_strides
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.pointwise import single
from gyrator_lowering.table import FallbackToAten

_LANES = 8
_CHUNK = 16
_VECTORS = 64
"""The most vectors of a row for which the steps are written out."""

Moments = tuple[int, Value, Value]
"""The number of values, their mean, and the sum of their squared deviations from it."""


def layer_norm(
    b: LoopBuilder,
    x: TensorValue,
    normalized: Sequence[Any],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[TensorValue, ...]:
    """`aten.native_layer_norm` over the last dimension, of at least 8 and fewer than 520 elements.

    Raises:
        FallbackToAten: for other arguments.
    """
    tensors = [t for t in (x, weight, bias) if t is not None]
    if weight is None and bias is not None:
        raise FallbackToAten  # which contracts the shift otherwise
    size = x.shape[-1]
    if len(normalized) != 1 or any(t.dtype is not DType.F32 for t in tensors):
        raise FallbackToAten
    if type(size) is not Const or not _LANES <= size.value < _LANES * (_VECTORS + 1):
        raise FallbackToAten
    out, *statistics = (s for s in b.outs if s is not None)
    if len(statistics) != 2:
        raise FallbackToAten
    vectors, rest = divmod(size.value, _LANES)
    shape = (*x.shape[:-1], Const(_LANES))
    part = Spec(DType.F32, x.device, shape, contiguous_strides(shape))

    def of_lanes(ops: Tracer, index: Sequence[Expr]) -> tuple[Value, Value]:
        *row, lane = index

        def chunk(first: int) -> Moments:
            numbers = range(first, min(first + _CHUNK, vectors))
            return _of_chunk(ops, (ops.load(x, (*row, lane + k * _LANES)) for k in numbers))

        _, mean, squares = _cascaded(ops, [chunk(k) for k in range(0, vectors, _CHUNK)])
        return mean, squares

    means, squares = b.pointwise_many(of_lanes, (part, part))

    def of_row(ops: Tracer, index: Sequence[Expr]) -> tuple[Value, Value]:
        row = index[:-1]
        last = (ops.load(x, (*row, Const(vectors * _LANES + k))) for k in range(rest))
        mean, total = _of_rest(ops, last)
        count = rest
        for lane in range(_LANES):
            at = (*row, Const(lane))
            share = single(vectors / (count + vectors))
            delta = ops.load(means, at) - mean
            mean = ops.fma(delta, share, mean)
            merged = ops.fma(delta * delta * share, float(count), ops.load(squares, at))
            total, count = total + merged, count + vectors
        variance = total / float(count)
        return mean, 1.0 / ops.sqrt(variance + float(eps))

    mean, inverse = b.pointwise_many(of_row, statistics)

    def normalised(ops: Tracer, index: Sequence[Expr]) -> Value:
        column = index[-1:]
        centred = ops.load(x, index) - ops.get(mean, index)
        factor = 1.0 if weight is None else ops.load(weight, column)
        added = 0.0 if bias is None else ops.load(bias, column)
        return ops.fma(centred * ops.get(inverse, index), factor, added)

    return b.pointwise(normalised, out), mean, inverse


def _of_chunk(ops: Tracer, values: Iterable[Value]) -> Moments:
    mean = squares = ops.const(0.0, DType.F32)
    count = 0
    for count, value in enumerate(values, 1):
        delta = value - mean
        mean = ops.fma(delta, single(1 / count), mean)
        squares = ops.fma(delta, value - mean, squares)
    return count, mean, squares


def _of_rest(ops: Tracer, values: Iterable[Value]) -> tuple[Value, Value]:
    mean = squares = ops.const(0.0, DType.F32)
    for count, value in enumerate(values, 1):
        delta = value - mean
        mean = mean + delta / float(count)
        squares = squares + delta * (value - mean)
    return mean, squares


def _cascaded(ops: Tracer, chunks: Sequence[Moments]) -> Moments:
    """Merge the moments of the chunks of a lane: two, then two of these, and so on."""
    depth = max((len(chunks) - 1).bit_length(), 1)
    levels: list[Moments | None] = [None] * depth
    for count, chunk in enumerate(chunks, 1):
        levels[0] = _merged(ops, levels[0], chunk)
        for level in range(1, depth):
            if count % (1 << level):
                break
            levels[level] = _merged(ops, levels[level], levels[level - 1])
            levels[level - 1] = None
    total = levels[0]
    for other in levels[1:]:
        total = _merged(ops, total, other)
    assert total is not None
    return total


def _merged(ops: Tracer, a: Moments | None, b: Moments | None) -> Moments | None:
    """Merge two counts, means and sums of squared deviations; None stands for no elements."""
    if a is None or b is None:
        return a if b is None else b
    (count, mean, squares), (more, other, added) = a, b
    delta = other - mean
    step = delta * single(more / (count + more))
    return count + more, mean + step, ops.fma(delta * float(count), step, squares + added)
