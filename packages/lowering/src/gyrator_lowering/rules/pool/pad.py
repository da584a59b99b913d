"""Reflection and replication padding, and their gradients; nearest and bilinear resizing."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from operator import add
from typing import Any

from gyrator_ir.expr import ONE, ZERO, Const, Expr, maximum, minimum
from gyrator_ir.types import HOST, DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import Tracer, Value, conjunction
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.scatter import Term, prefers_scatter, scatter_sum
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder

Source = Callable[[Expr, Expr, Expr], Expr]
"""Maps a position in the padded plane, the padding before it, and the size to a position in the
input."""


def reflected(i: Expr, before: Expr, size: Expr) -> Expr:
    """Return the mirrored position, without repeating the border."""
    position = i - before
    last = size - 1
    distance = maximum(position, -position)
    return last - maximum(distance - last, last - distance)


def replicated(i: Expr, before: Expr, size: Expr) -> Expr:
    """Return the nearest position."""
    return minimum(maximum(i - before, 0), size - 1)


def _befores(b: LoopBuilder, pad: Sequence[Any], rank: int) -> list[Expr]:
    return [b.symbols.size(pad[2 * (rank - 1 - d)]) for d in range(rank)]


def _origin(
    index: Sequence[Expr], befores: Sequence[Expr], shape: Sequence[Expr], source: Source
) -> tuple[Expr, ...]:
    lead = len(shape) - len(befores)
    positions = (
        ZERO if n is ONE and source is replicated else source(i, p, n)
        for i, p, n in zip(index[lead:], befores, shape[lead:], strict=True)
    )
    return (*index[:lead], *positions)


def pad(source: Source, rank: int) -> Rule:
    """Return the rule of padding with elements of the input."""

    def rule(b: LoopBuilder, x: TensorValue, widths: Sequence[Any]) -> TensorValue:
        befores = _befores(b, widths, rank)
        return b.pointwise(lambda ops, index: ops.load(x, _origin(index, befores, x.shape, source)))

    return rule


def reflection_backward(rank: int) -> Rule:
    """Return the rule of the gradient of reflection padding. Along each dimension, an element
    gathers from its own position and from its images in borders that are wide enough."""

    def rule(
        b: LoopBuilder, grad: TensorValue, x: TensorValue, widths: Sequence[Any]
    ) -> TensorValue:
        befores, lead = _befores(b, widths, rank), x.ndim - rank
        if prefers_scatter(b, b.out):
            return _scattered(b, grad, lambda index: _origin(index, befores, x.shape, reflected))
        dtype = b.out.dtype.compute

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            images = (
                _images(ops, i, p, n, m)
                for i, p, n, m in zip(
                    index[lead:], befores, x.shape[lead:], grad.shape[lead:], strict=True
                )
            )

            def term(image: Sequence[tuple[Expr, Value | None]]) -> Value:
                at = (*index[:lead], *(position for position, _ in image))
                mask = conjunction(None, (valid for _, valid in image))
                return ops.cast(ops.load(grad, at, mask), dtype)

            return reduce(add, map(term, product(*images)))

        return b.pointwise(body)

    return rule


def _images(
    ops: Tracer, i: Expr, before: Expr, n: Expr, m: Expr
) -> Iterator[tuple[Expr, Value | None]]:
    """Yield the positions among `m` at which the element `i` of `n` occurs, and whether they are
    valid."""
    own, first, last = i + before, before - i, before + 2 * (n - 1) - i
    after = m - n - before
    cropped = any(type(w) is not Const or w.value < 0 for w in (before, after))
    at = ops.index(own)
    yield own, ops.bit_and(ops.ge(at, 0), ops.lt(at, ops.index(m))) if cropped else None
    if type(before) is not Const or before.value > 0:
        yield first, ops.bit_and(ops.ge(ops.index(first), 0), ops.gt(ops.index(i), 0))
    if type(after) is not Const or after.value > 0:
        before_end = ops.lt(ops.index(i), ops.index(n - 1))
        yield last, ops.bit_and(ops.lt(ops.index(last), ops.index(m)), before_end)


def replication_backward(rank: int) -> Rule:
    """Return the rule of the gradient: every border element is added to its source."""

    def rule(
        b: LoopBuilder, grad: TensorValue, x: TensorValue, widths: Sequence[Any]
    ) -> TensorValue:
        befores = _befores(b, widths, rank)
        return _scattered(b, grad, lambda index: _origin(index, befores, x.shape, replicated))

    return rule


def _scattered(
    b: LoopBuilder, grad: TensorValue, source_index: Callable[[Sequence[Expr]], tuple[Expr, ...]]
) -> TensorValue:
    """Add each element of `grad` to the element of the result that it came from."""
    dtype = b.out.dtype.compute

    def terms(ops: Tracer, index: tuple[Expr, ...]) -> Iterator[Term]:
        yield source_index(index), ops.cast(ops.load(grad, index), dtype), None

    return scatter_sum(b, grad.shape, terms)


# Resizing -------------------------------------------------------------------------------------


def _nearest_source(
    ops: Tracer, i: Expr, scale: float | None, n: Expr, m: Expr, exact: bool, by_sizes: bool
) -> Expr:
    """Return the nearest source position, floor(i * scale) in `f32` as in eager mode, at most n -
    1; with `by_sizes`, the scale has no effect along an axis whose size is kept or doubled."""
    if by_sizes and m in (n, n * 2):
        scale = None
    simple = scale is None and not exact
    if simple and type(n) is Const and type(m) is Const:
        if n.value % m.value == 0:
            return i * (n.value // m.value)
        if m.value % n.value == 0:
            return i // (m.value // n.value)
    ratio = _ratio(ops, scale, n, m)
    position = ops.cast(ops.index(i), DType.F32)
    at = ops.floor((position + 0.5) * ratio if exact else position * ratio)
    source = ops.minimum(ops.cast(at, DType.I64), ops.index(n - 1))
    return ops.bind(source, n, check=False)


def _nearest_sources(
    ops: Tracer, index: Sequence[Expr], scales: Sequence[Any], ins: Sequence[Expr],
    outs: Sequence[Expr], exact: bool, host: bool,
) -> tuple[Expr, ...]:  # fmt: skip
    """Return the nearest source position of a position in an image."""
    all_scales = (*scales, *[None] * (len(ins) - 2 - len(scales)))
    axes = zip(index[2:], all_scales, ins[2:], outs[2:], strict=True)
    by_sizes = host and not exact and len(ins) == 4  # as ATen does
    return (*index[:2], *(_nearest_source(ops, i, s, n, m, exact, by_sizes) for i, s, n, m in axes))


def _ratio(ops: Tracer, scale: float | None, n: Expr, m: Expr) -> Value:
    if scale is not None and scale > 0:
        return ops.const(1.0 / scale, DType.F32)
    if type(n) is Const and type(m) is Const:
        top, bottom = ops.const(n.value, DType.F32), ops.const(m.value, DType.F32)
        return top / bottom
    return operand(ops, n, (), DType.F32) / operand(ops, m, (), DType.F32)


def nearest(exact: bool) -> Rule:
    """Return the rule of `upsample_nearest` of images of any rank."""

    def rule(b: LoopBuilder, x: TensorValue, size: Any, *scales: Any) -> TensorValue:
        shape, host = b.out.shape, b.out.device.type == HOST

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            return ops.load(x, _nearest_sources(ops, index, scales, x.shape, shape, exact, host))

        return b.pointwise(body)

    return rule


def nearest_backward(exact: bool) -> Rule:
    """Return the rule of the gradient of `upsample_nearest`."""

    def rule(
        b: LoopBuilder, grad: TensorValue, size: Any, input_size: Any, *scales: Any
    ) -> TensorValue:
        shape, dtype = b.out.shape, b.out.dtype.compute
        host = b.out.device.type == HOST

        def terms(ops: Tracer, index: tuple[Expr, ...]) -> Iterator[Term]:
            source = _nearest_sources(ops, index, scales, shape, grad.shape, exact, host)
            yield source, ops.cast(ops.load(grad, index), dtype), None

        return scatter_sum(b, grad.shape, terms)

    return rule


def _neighbours(
    ops: Tracer, i: Expr, n: Expr, m: Expr, scale: float | None, corners: bool, dtype: DType,
    host: bool,
) -> tuple[tuple[Expr, Value], tuple[Expr, Value]]:  # fmt: skip
    """Return the two source positions along an axis, and their weights. On the host, the scale
    has no effect along an axis that keeps its size."""
    if host and n == m:
        return (i, ops.const(1.0, dtype)), (i, ops.const(0.0, dtype))
    position = ops.cast(ops.index(i), dtype)
    if corners:
        last = operand(ops, m - 1, (), dtype)
        ratio = operand(ops, n - 1, (), dtype) / ops.maximum(last, 1.0)
        at = position * ratio
    else:
        ratio = ops.cast(_ratio(ops, scale, n, m), dtype)
        at = ops.maximum((position + 0.5) * ratio - 0.5, 0.0)
    low = ops.minimum(ops.cast(ops.floor(at), DType.I64), ops.index(n - 1))
    high = ops.minimum(low + 1, ops.index(n - 1))
    weight = ops.minimum(ops.maximum(at - ops.cast(low, dtype), 0.0), 1.0)
    first = ops.bind(low, n, check=False)
    second = ops.bind(high, n, check=False)
    return (first, 1.0 - weight), (second, weight)


def bilinear(b: LoopBuilder, x: TensorValue, size: Any, corners: bool, *scales: Any) -> TensorValue:
    """`upsample_bilinear2d`; ATen resizes integers with fixed-point weights."""
    out = b.out
    if not out.dtype.is_float:
        raise FallbackToAten
    dtype, host = out.dtype.compute, out.device.type == HOST
    all_scales = list(scales) + [None] * (2 - len(scales))

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        rows, columns = (
            _neighbours(ops, i, n, m, s, corners, dtype, host)
            for i, n, m, s in zip(index[2:], x.shape[2:], out.shape[2:], all_scales, strict=True)
        )

        def line(row: Expr) -> Value:
            return reduce(
                add, (ops.cast(ops.load(x, (*index[:2], row, j)), dtype) * v for j, v in columns)
            )

        return reduce(add, (line(row) * w for row, w in rows))

    return b.pointwise(body, out)


def bilinear_backward(
    b: LoopBuilder, grad: TensorValue, size: Any, input_size: Any, corners: bool, *scales: Any
) -> TensorValue:
    """Gradient of `upsample_bilinear2d`."""
    shape, dtype, host = b.out.shape, b.out.dtype.compute, b.out.device.type == HOST
    all_scales = list(scales) + [None] * (2 - len(scales))

    def terms(ops: Tracer, index: tuple[Expr, ...]) -> Iterator[Term]:
        rows, columns = (
            _neighbours(ops, i, n, m, s, corners, dtype, host)
            for i, n, m, s in zip(index[2:], shape[2:], grad.shape[2:], all_scales, strict=True)
        )
        value = ops.cast(ops.load(grad, index), dtype)
        for row, w in rows:
            for column, v in columns:
                yield (*index[:2], row, column), value * w * v, None

    return scatter_sum(b, grad.shape, terms)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for rank in (1, 2, 3):
        backward = {
            "reflection": (reflected, reflection_backward(rank)),
            "replication": (replicated, replication_backward(rank)),
        }
        for name, (source, gradient) in backward.items():
            table.rule(f"aten.{name}_pad{rank}d.default")(pad(source, rank))
            table.rule(f"aten.{name}_pad{rank}d_backward.default")(gradient)
        for name, exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
            table.rule(f"aten.{name}{rank}d.default")(nearest(exact))
            table.rule(f"aten.{name}{rank}d_backward.default")(nearest_backward(exact))
    table.rule("aten.upsample_bilinear2d.default")(bilinear)
    table.rule("aten.upsample_bilinear2d_backward.default")(bilinear_backward)
