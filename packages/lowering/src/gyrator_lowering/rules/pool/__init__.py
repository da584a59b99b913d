"""Pooling, and its gradients."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from operator import add, mul
from typing import Any

from gyrator_ir.body.nodes import Check, ReduceKind, StoreMode
from gyrator_ir.expr import (
    ONE,
    ZERO,
    Const,
    Expr,
    contiguous_strides,
    expr,
    maximum,
    minimum,
    mod,
    product_of,
)
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder, flat_index, unravel
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import Tracer, Value, conjunction
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.index import inside
from gyrator_lowering.rules.scatter import Term, prefers_scatter, scatter_sum, supports_store
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder

UNROLLED = 32
"""Windows up to this many elements are unrolled; larger ones are reductions."""
_WIDE = 4
"""The width of adaptive windows from which their gradient is added row by row."""
_PLANE = 2
"""Rank up to which gradients of overlapping adaptive windows are computed in kernels on devices
that prefer to scatter: with more, an element has too many windows, and rows are too short."""
WindowElement = tuple[Sequence[Expr], Value | None]
"""An element of a window: its position in the plane, and whether that is in bounds (None if
always)."""


def per_dimension(value: Any, rank: int, default: Sequence[int] | None = None) -> list[int]:
    """Return one number for each dimension from a number, a list, or an empty list (the
    default)."""
    if isinstance(value, int):
        return [value] * rank
    items = list(value)
    if not items:
        return list(default or [1] * rank)
    return items * rank if len(items) == 1 else items


def all_static(*groups: Sequence[Any]) -> bool:
    """Return whether all numbers are constants."""
    return all(isinstance(v, int) for group in groups for v in group)


def window_numbers(
    rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return the size, stride, padding and dilation of a window, by dimension.

    Raises:
        FallbackToAten: if they are not constants.
    """
    size = per_dimension(kernel, rank)
    step = per_dimension(stride, rank, size)
    pad, dilations = per_dimension(padding, rank), per_dimension(dilation, rank)
    if not all_static(size, step, pad, dilations):
        raise FallbackToAten
    return size, step, pad, dilations


def _offsets(window: Sequence[int]) -> list[tuple[int, ...]]:
    """Return all positions in a window, in row-major order."""
    return list(product(*map(range, window)))


def read_at(
    base: Sequence[Expr],
    offset: Sequence[Any],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> list[Expr]:
    """Return the position in the plane of the window's element at an offset."""
    return [
        i * s - p + expr(k) * d
        for i, k, s, p, d in zip(base, offset, stride, pad, dilation, strict=True)
    ]


def max_pool(rank: int) -> Rule:
    """Return the rule of `max_pool<rank>d_with_indices`: values, and indices into the input
    plane."""

    def rule(
        b: LoopBuilder,
        x: TensorValue,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil: bool = False,
    ) -> Any:
        window, step, pad, dilations = window_numbers(rank, kernel, stride, padding, dilation)
        if len(_offsets(window)) > 256:
            raise FallbackToAten
        lead = x.ndim - rank
        padded = any(pad) or ceil
        dims = list(range(lead, x.ndim))

        def elements(ops: Tracer, index: Sequence[Expr]) -> Iterator[WindowElement]:
            for offset in _offsets(window):
                at = read_at(index[lead:], offset, step, pad, dilations)
                mask = inside(ops, (*index[:lead], *at), x.shape, dims) if padded else None
                yield at, mask

        def first(at: Sequence[Expr]) -> list[Expr]:
            # If all elements are the lowest value, the first one in bounds counts.
            return [maximum(a, mod(a, Const(d))) for a, d in zip(at, dilations, strict=True)]

        return _window_maximum(b, x, rank, elements, first)

    return rule


def _window_maximum(
    b: LoopBuilder,
    x: TensorValue,
    rank: int,
    elements: Callable[[Tracer, Sequence[Expr]], Iterator[WindowElement]],
    first: Callable[[Sequence[Expr]], Sequence[Expr]],
) -> tuple[TensorValue, TensorValue | None]:
    """Return the largest element of each window, and its index in the plane if that is used.

    `elements` yields a window's elements. `first` returns the position to report if all are the
    lowest value, given that of the first element.
    """
    out, out_indices = b.outs
    assert out is not None and out_indices is not None
    lead = x.ndim - rank
    steps = contiguous_strides(x.shape[lead:])

    def best(ops: Tracer, index: Sequence[Expr], with_index: bool) -> tuple[Value, Value | None]:
        value: Value | None = None
        position: Value | None = None
        for at, mask in elements(ops, index):
            full_index = (*index[:lead], *at)
            new = ops.wide(ops.masked_load(x, full_index, mask, x.dtype.limits[0]))
            if value is None:
                value = new
                position = ops.index(flat_index(first(at), steps)) if with_index else None
                continue
            if position is None:
                value = ops.maximum(value, new)
                continue
            better = ops.gt(new, value)  # false out of bounds, where the lowest value is read
            if new.dtype.is_float:
                better = better | ops.isnan(new)
            position = ops.where(better, ops.index(flat_index(at, steps)), position)
            value = ops.where(better, new, value)
        assert value is not None
        return value, position

    if 1 not in b.used_results:
        return b.pointwise(lambda ops, i: best(ops, i, with_index=False)[0], out), None

    def both(ops: Tracer, index: Sequence[Expr]) -> list[Value]:
        return [v for v in best(ops, index, with_index=True) if v is not None]

    values, at = b.pointwise_many(both, (out, out_indices))
    return values, at


def adaptive_max_pool(rank: int) -> Rule:
    """Return the rule of `adaptive_max_pool<rank>d`: values, and indices into the input plane."""

    def rule(b: LoopBuilder, x: TensorValue, size: Any) -> Any:
        out, _ = b.outs
        assert out is not None
        if not x.dtype.is_float:
            raise FallbackToAten  # raises
        lead = x.ndim - rank
        plane, sizes = x.shape[lead:], out.shape[lead:]
        if ZERO in sizes or not all(type(n) is Const for n in (*plane, *sizes)):
            raise FallbackToAten
        longest = [_largest_window(n, w) for n, w in zip(plane, sizes, strict=True)]
        window = [n.value for n in longest if isinstance(n, Const)]
        if len(_offsets(window)) > UNROLLED:
            raise FallbackToAten

        def elements(ops: Tracer, index: Sequence[Expr]) -> Iterator[WindowElement]:
            for offset in _offsets(window):
                yield _adaptive_element(ops, index[lead:], offset, plane, sizes)

        return _window_maximum(b, x, rank, elements, lambda at: at)

    return rule


def adaptive_max_pool_backward(rank: int) -> Rule:
    """Return the rule of the gradient: each window scatters to the element that it selected."""

    def rule(
        b: LoopBuilder, grad: TensorValue, x: TensorValue, indices: TensorValue
    ) -> TensorValue:
        return _scatter_gradient(b, grad, x, indices, rank)

    return rule


def max_pool_backward(rank: int) -> Rule:
    """Return the rule of the gradient: each input element gathers from the windows that selected
    it, or each window scatters to the element that it selected, as the target prefers."""

    def rule(
        b: LoopBuilder,
        grad: TensorValue,
        x: TensorValue,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil: bool,
        indices: TensorValue,
    ) -> TensorValue:
        window, step, pad, dilations = window_numbers(rank, kernel, stride, padding, dilation)
        out = b.out
        lead = x.ndim - rank
        window_counts = [(w + s - 1) // s for w, s in zip(window, step, strict=True)]
        scatters = any(d != 1 for d in dilations) or len(_offsets(window_counts)) > UNROLLED
        if scatters or prefers_scatter(b, out):
            return _scatter_gradient(b, grad, x, indices, rank)
        dtype = out.dtype.compute
        dims = list(range(lead, x.ndim))
        steps = contiguous_strides(x.shape[lead:])

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            own_index = ops.index(flat_index(index[lead:], steps))
            total = ops.const(0, dtype)
            for offset in _offsets(window_counts):
                at = [
                    (i + p) // s - k
                    for i, p, s, k in zip(index[lead:], pad, step, offset, strict=True)
                ]
                full_index = (*index[:lead], *at)
                mask = inside(ops, full_index, grad.shape, dims)
                chosen = ops.eq(ops.cast(ops.load(indices, full_index, mask), DType.I64), own_index)
                chosen = chosen if mask is None else chosen & mask
                total = total + ops.cast(ops.load(grad, full_index, chosen), dtype)
            return total

        return b.pointwise(body, out)

    return rule


def _scatter_gradient(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, indices: TensorValue, rank: int
) -> TensorValue:
    """Add each element of `grad` at the index in the plane that it came from."""
    dtype, lead = b.out.dtype.compute, x.ndim - rank
    plane = x.shape[lead:]

    def terms(ops: Tracer, index: tuple[Expr, ...]) -> Iterator[Term]:
        flat = ops.bind(ops.load(indices, index), product_of(plane))
        at = (*index[:lead], *unravel(flat, plane))
        yield at, ops.cast(ops.load(grad, index), dtype), None

    return scatter_sum(b, grad.shape, terms)


def avg_pool(rank: int) -> Rule:
    """Return the rule of `avg_pool<rank>d`."""

    def rule(
        b: LoopBuilder,
        x: TensorValue,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> TensorValue:
        window, step, pad, _ = window_numbers(rank, kernel, stride, padding)
        if not x.dtype.is_float:
            raise FallbackToAten
        lead = x.ndim - rank
        out = b.out
        dtype = out.dtype.compute
        read, before = list(window), list(pad)
        dims = []
        for d, (n, size) in enumerate(zip(x.shape[lead:], out.shape[lead:], strict=True)):
            if size is ONE and type(n) is Const:  # one window, which may be larger than the plane
                read[d], before[d] = min(window[d] - pad[d], n.value), 0
            elif pad[d] or ceil:
                dims.append(lead + d)

        def term(ops: Tracer, index: Sequence[Expr], offset: Sequence[Any]) -> Value:
            full_index = (*index[:lead], *read_at(index[lead:], offset, step, before, [1] * rank))
            mask = inside(ops, full_index, x.shape, dims) if dims else None
            return ops.cast(ops.load(x, full_index, mask), dtype)

        def scale(ops: Tracer, index: Sequence[Expr], total: Value) -> Value:
            n = _divisor(index[lead:], x.shape[lead:], window, step, pad, ceil, count_include_pad)
            return total / operand(ops, divisor if divisor is not None else n, (), dtype)

        return windowed(b, read, out, dtype, term, scale)

    return rule


def windowed(
    b: LoopBuilder,
    window: Sequence[int | Expr],
    out: Spec,
    dtype: DType,
    term: Callable[[Tracer, Sequence[Expr], Sequence[Any]], Value],
    scale: Callable[[Tracer, Sequence[Expr], Value], Value],
) -> TensorValue:
    """Sum the terms of a window: unrolled if its sizes are small numbers, otherwise a reduction."""
    sizes = [n for n in window if isinstance(n, int)]
    if len(sizes) == len(window) and len(_offsets(sizes)) <= UNROLLED:

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            return scale(ops, index, reduce(add, (term(ops, index, k) for k in _offsets(sizes))))

        return b.pointwise(body, out)
    raw = b.buffer(Spec(dtype, out.device, out.shape, out.strides))
    b.reduction(ReduceKind.SUM, term, out.shape, tuple(map(expr, window)), [raw], dtype)
    return b.pointwise(lambda ops, index: scale(ops, index, ops.load(raw, index)), out)


def _divisor(
    index: Sequence[Expr],
    plane: Sequence[Expr],
    window: Sequence[int],
    step: Sequence[int],
    pad: Sequence[int],
    ceil: bool,
    include_pad: bool,
) -> Expr:
    """Return how many elements of a window count: with padding, or only those in bounds."""
    if not ceil and (include_pad or not any(pad)):
        return Const(math.prod(window))
    total: Expr = ONE
    for i, n, w, s, p in zip(index, plane, window, step, pad, strict=True):
        start = i * s - p
        end = minimum(start + w, n + p)
        if include_pad:
            total = total * (end - start)
        else:
            total = total * (minimum(end, n) - maximum(start, 0))
    return total


def avg_pool_backward(rank: int) -> Rule:
    """Return the rule of the gradient: each input element gathers from the windows that contain
    it."""

    def rule(
        b: LoopBuilder,
        grad: TensorValue,
        x: TensorValue,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil: bool,
        count_include_pad: bool,
        divisor: int | None = None,
    ) -> TensorValue:
        window, step, pad, _ = window_numbers(rank, kernel, stride, padding)
        window_counts = [(w + s - 1) // s for w, s in zip(window, step, strict=True)]
        lead = x.ndim - rank
        out = b.out
        dtype = out.dtype.compute
        dims = list(range(lead, x.ndim))

        def term(ops: Tracer, index: Sequence[Expr], offset: Sequence[Any]) -> Value:
            at = [
                (i + p) // s - k for i, p, s, k in zip(index[lead:], pad, step, offset, strict=True)
            ]
            full_index = (*index[:lead], *at)
            mask = inside(ops, full_index, grad.shape, dims)
            covered = (
                ops.lt(ops.index(i + p - o * s), w)
                for i, o, p, s, w in zip(index[lead:], at, pad, step, window, strict=True)
                if w % s
            )
            mask = conjunction(mask, covered)
            n = _divisor(at, x.shape[lead:], window, step, pad, ceil, count_include_pad)
            size = operand(ops, divisor if divisor is not None else n, (), dtype)
            value = ops.cast(ops.load(grad, full_index, mask), dtype) / size
            return value if mask is None else ops.where(mask, value, 0.0)

        return windowed(b, window_counts, out, dtype, term, lambda _, __, total: total)

    return rule


def adaptive_avg_pool(rank: int) -> Rule:
    """Return the rule of `_adaptive_avg_pool<rank>d`, whose windows divide the plane evenly."""

    def rule(b: LoopBuilder, x: TensorValue, size: Any) -> TensorValue:
        lead = x.ndim - rank
        plane = x.shape[lead:]
        out = b.out
        sizes = out.shape[lead:]
        known = all(type(n) is Const for n in (*sizes, *plane))
        if ZERO in sizes or (not known and any(n is not ONE for n in sizes)):
            raise FallbackToAten
        dtype = out.dtype.compute
        window = tuple(_largest_window(n, w) for n, w in zip(plane, sizes, strict=True))

        def term(ops: Tracer, index: Sequence[Expr], r: Sequence[Expr]) -> Value:
            at, mask = _adaptive_element(ops, index[lead:], r, plane, sizes)
            return ops.cast(ops.load(x, (*index[:lead], *at), mask), dtype)

        def scale(ops: Tracer, index: Sequence[Expr], total: Value) -> Value:
            return total / _count(ops, index[lead:], plane, sizes, dtype)

        return windowed(b, window, out, dtype, term, scale)

    return rule


def _adaptive_element(
    ops: Tracer,
    index: Sequence[Expr],
    offset: Sequence[Any],
    plane: Sequence[Expr],
    sizes: Sequence[Expr],
) -> WindowElement:
    """Return an element of an adaptive window. `offset` is less than the largest window."""
    starts, ends = _edges(index, plane, sizes)
    at = [start + k for start, k in zip(starts, offset, strict=True)]
    within = (
        ops.lt(ops.index(i), ops.index(end))
        for i, start, end, n, w in zip(at, starts, ends, plane, sizes, strict=True)
        if not (_even(n, w) or isinstance(end - start, Const))
    )
    return at, conjunction(None, within)


def _even(n: Expr, w: Expr) -> bool:
    """Return whether `w` adaptive windows divide `n` elements evenly: each is in one of them."""
    return w is ONE or (n % w) is ZERO


def _edges(
    index: Sequence[Expr], plane: Sequence[Expr], sizes: Sequence[Expr]
) -> tuple[list[Expr], list[Expr]]:
    """Return the start and the exclusive end of each window: floor(i n / w) and ceil((i + 1) n /
    w)."""
    along = list(zip(index, plane, sizes, strict=True))
    starts = [(i * n) // w for i, n, w in along]
    return starts, [((i + 1) * n + w - 1) // w for i, n, w in along]


def _count(
    ops: Tracer, index: Sequence[Expr], plane: Sequence[Expr], sizes: Sequence[Expr], dtype: DType
) -> Value:
    """Return the number of elements of an adaptive window.

    Extents that depend on `index` are multiplied as values: expressions are kept as sums, and that
    of a product would have a term for each choice of one term of every factor."""
    starts, ends = _edges(index, plane, sizes)
    extents = [e - s for s, e in zip(starts, ends, strict=True)]
    if all(type(n) is Const for n in extents):
        return operand(ops, product_of(extents), (), dtype)
    return ops.cast(reduce(mul, map(ops.index, extents)), dtype)


def _largest_window(n: Expr, w: Expr) -> Expr:
    """Return the size of the largest window."""
    if w is ONE or type(n) is not Const or type(w) is not Const:
        return n
    total, parts = n.value, w.value
    return Const(
        max((((i + 1) * total + parts - 1) // parts) - (i * total) // parts for i in range(parts))
    )


def adaptive_avg_pool_backward(rank: int) -> Rule:
    """Return the rule of the gradient of `_adaptive_avg_pool<rank>d`."""

    def rule(b: LoopBuilder, grad: TensorValue, x: TensorValue) -> TensorValue:
        lead = x.ndim - rank
        plane, sizes = x.shape[lead:], grad.shape[lead:]
        if not all(type(n) is Const for n in (*sizes, *plane)) and any(n is not ONE for n in sizes):
            raise FallbackToAten
        out = b.out
        dtype = out.dtype.compute
        window_counts = [_most_windows(n, w) for n, w in zip(plane, sizes, strict=True)]
        uneven = [k for k, (n, w) in enumerate(zip(plane, sizes, strict=True)) if not _even(n, w)]
        dims = [lead + k for k in uneven]
        width = _largest_window(plane[-1], sizes[-1])
        wide = isinstance(width, Const) and width.value >= _WIDE
        if max(window_counts) > 1 and prefers_scatter(b, out):
            if rank > _PLANE:
                raise FallbackToAten
            if wide:
                return _scatter_to_windows(b, grad, plane)

        def term(ops: Tracer, index: Sequence[Expr], offset: Sequence[Any]) -> Value:
            first = [(i * w) // n for i, n, w in zip(index[lead:], plane, sizes, strict=True)]
            at = [f + k for f, k in zip(first, offset, strict=True)]
            full_index = (*index[:lead], *at)
            starts, ends = _edges(at, plane, sizes)
            mask = inside(ops, full_index, grad.shape, dims)
            covered = (
                ops.ge(ops.index(index[lead + k]), ops.index(starts[k]))
                & ops.lt(ops.index(index[lead + k]), ops.index(ends[k]))
                for k in uneven
            )
            mask = conjunction(mask, covered)
            n = _count(ops, at, plane, sizes, dtype)
            value = ops.cast(ops.load(grad, full_index, mask), dtype) / n
            return value if mask is None else ops.where(mask, value, 0.0)

        return windowed(b, window_counts, out, dtype, term, lambda _, __, total: total)

    return rule


def _scatter_to_windows(b: LoopBuilder, grad: TensorValue, plane: Sequence[Expr]) -> TensorValue:
    """Add to the elements of each adaptive window their share of its element of `grad`. Rows of a
    window are consecutive in memory, whereas an element's windows depend on its position."""
    dtype, ndim = b.out.dtype.compute, len(grad.shape)
    lead = ndim - len(plane)
    sizes = grad.shape[lead:]
    window = [_largest_window(n, w) for n, w in zip(plane, sizes, strict=True)]

    def terms(ops: Tracer, index: tuple[Expr, ...]) -> Iterator[Term]:
        own, offset = index[:ndim], index[ndim:]
        at, mask = _adaptive_element(ops, own[lead:], offset, plane, sizes)
        n = _count(ops, own[lead:], plane, sizes, dtype)
        value = ops.cast(ops.load(grad, own), dtype) / n
        yield (*own[:lead], *at), value, mask

    return scatter_sum(b, (*grad.shape, *window), terms)


def _most_windows(n: Expr, w: Expr) -> int:
    """Return how many windows, from floor(i w / n) on, may contain one element."""
    if w is ONE:
        return 1
    assert isinstance(n, Const) and isinstance(w, Const)
    total, parts = n.value, w.value
    ends = (-(-(i + 1) * parts // total) for i in range(total))
    return max((end - i * parts // total for i, end in enumerate(ends)), default=1)


def max_unpool(rank: int) -> Rule:
    """Return the rule of `max_unpool` over `rank` dimensions; torch's decomposition does not check
    the indices that it writes to."""

    def rule(b: LoopBuilder, x: TensorValue, indices: TensorValue, *_: Any) -> TensorValue:
        out = b.out
        if not supports_store(b, out.device.type, out.dtype, StoreMode.SET):
            raise FallbackToAten
        result = b.pointwise(lambda ops, _: operand(ops, 0, (), out.dtype.compute), out)
        plane = out.shape[-rank:]

        def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
            flat = ops.bind(ops.load(indices, index), product_of(plane), check=Check.RUNTIME)
            at = (*index[:-rank], *unravel(flat, plane))
            ops.store(result, at, ops.load(x, index))

        b.scatter(x.shape, body)
        return result

    return rule


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for rank in (2, 3):
        table.rule(f"aten.max_unpool{rank}d.default")(max_unpool(rank))
        table.rule(f"aten.max_pool{rank}d_with_indices.default")(max_pool(rank))
        table.rule(f"aten.max_pool{rank}d_with_indices_backward.default")(max_pool_backward(rank))
        table.rule(f"aten.adaptive_max_pool{rank}d.default")(adaptive_max_pool(rank))
        table.rule(f"aten.adaptive_max_pool{rank}d_backward.default")(
            adaptive_max_pool_backward(rank)
        )
        table.rule(f"aten._adaptive_avg_pool{rank}d.default")(adaptive_avg_pool(rank))
        table.rule(f"aten._adaptive_avg_pool{rank}d_backward.default")(
            adaptive_avg_pool_backward(rank)
        )
        table.rule(f"aten.avg_pool{rank}d.default")(avg_pool(rank))
        table.rule(f"aten.avg_pool{rank}d_backward.default")(avg_pool_backward(rank))
