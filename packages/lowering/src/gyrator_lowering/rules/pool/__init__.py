"""Pooling windows, and their gradients."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gyrator_ir.body.nodes import Check, ReduceKind, StoreMode
from gyrator_ir.expr import ONE, ZERO, Const, Expr, maximum, minimum, mod, product_of
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder, unravel
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.index import inside
from gyrator_lowering.rules.scatter import can, scatters_back, settled
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder

UNROLLED = 32
"""Windows up to this many elements are read one by one; larger ones are folded."""
Place = tuple[Sequence[Expr], Value | None]
"""An element of a window: where it lies in the plane, and whether it does; None where surely."""


def expanded(value: Any, rank: int, default: Sequence[int] | None = None) -> list[int]:
    """Return one number a dimension from a number, a list, or an empty list (the default)."""
    if isinstance(value, int):
        return [value] * rank
    items = list(value)
    if not items:
        return list(default or [1] * rank)
    return items * rank if len(items) == 1 else items


def known(*groups: Sequence[Any]) -> bool:
    """Whether all numbers are constants."""
    return all(isinstance(v, int) for group in groups for v in group)


def _offsets(window: Sequence[int]) -> list[tuple[int, ...]]:
    """Return all positions in a window, in row-major order."""
    result: list[tuple[int, ...]] = [()]
    for size in window:
        result = [(*head, k) for head in result for k in range(size)]
    return result


def read_at(
    base: Sequence[Expr],
    offset: Sequence[Any],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> list[Expr]:
    """Return where in the plane the window of each dimension has the element at an offset."""
    return [
        i * s - p + Const(k) * d if isinstance(k, int) else i * s - p + k * d
        for i, k, s, p, d in zip(base, offset, stride, pad, dilation, strict=True)
    ]


def max_pool(rank: int) -> Rule:
    """Return the rule of `max_pool<rank>d_with_indices`: values, and places in the input plane."""

    def rule(
        b: LoopBuilder,
        x: TensorValue,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil: bool = False,
    ) -> Any:
        window = expanded(kernel, rank)
        step = expanded(stride, rank, window)
        pad, spread = expanded(padding, rank), expanded(dilation, rank)
        if not known(window, step, pad, spread) or len(_offsets(window)) > 256:
            raise FallbackToAten
        lead = x.ndim - rank
        padded = any(pad) or ceil
        dims = list(range(lead, x.ndim))

        def places(ops: Tracer, index: Sequence[Expr]) -> Iterator[Place]:
            for offset in _offsets(window):
                at = read_at(index[lead:], offset, step, pad, spread)
                mask = inside(ops, (*index[:lead], *at), x.shape, dims) if padded else None
                yield at, mask

        def first(at: Sequence[Expr]) -> list[Expr]:
            # Of a window whose elements are all the lowest, the first inside counts.
            return [maximum(a, mod(a, Const(d))) for a, d in zip(at, spread, strict=True)]

        return _largest(b, x, rank, places, first)

    return rule


def _largest(
    b: LoopBuilder,
    x: TensorValue,
    rank: int,
    places: Callable[[Tracer, Sequence[Expr]], Iterator[Place]],
    first: Callable[[Sequence[Expr]], Sequence[Expr]],
) -> tuple[TensorValue, TensorValue | None]:
    """Return the largest element of each window, and its place in the plane if that is used.

    `places` gives a window's elements; `first` the place to name where all are the lowest, from
    that of the first element.
    """
    out, out_places = b.outs
    assert out is not None and out_places is not None
    lead = x.ndim - rank
    plane = x.shape[lead:]

    def best(ops: Tracer, index: Sequence[Expr], with_place: bool) -> tuple[Value, Value | None]:
        value: Value | None = None
        where: Value | None = None
        for at, mask in places(ops, index):
            whole = (*index[:lead], *at)
            new = ops.wide(
                ops.load(x, whole)
                if mask is None
                else ops.masked_load(x, whole, mask, _lowest(x.dtype))
            )
            if value is None:
                value = new
                where = ops.index(_flat(first(at), plane)) if with_place else None
                continue
            if where is None:
                value = ops.maximum(value, new)
                continue
            better = ops.gt(new, value)  # never so outside, where the lowest is read
            if new.dtype.is_float:
                better = better | ops.isnan(new)
            where = ops.where(better, ops.index(_flat(at, plane)), where)
            value = ops.where(better, new, value)
        assert value is not None
        return value, where

    if 1 not in b.used_results:
        return b.pointwise(lambda ops, i: best(ops, i, with_place=False)[0], out), None

    def both(ops: Tracer, index: Sequence[Expr]) -> list[Value]:
        return [v for v in best(ops, index, with_place=True) if v is not None]

    values, at = b.pointwise_many(both, (out, out_places))
    return values, at


def adaptive_max_pool(rank: int) -> Rule:
    """Return the rule of `adaptive_max_pool<rank>d`: values, and places in the input plane."""

    def rule(b: LoopBuilder, x: TensorValue, size: Any) -> Any:
        out, _ = b.outs
        assert out is not None
        lead = x.ndim - rank
        plane, wanted = x.shape[lead:], out.shape[lead:]
        if not all(type(n) is Const for n in (*plane, *wanted)):
            raise FallbackToAten
        longest = [_longest(n, w) for n, w in zip(plane, wanted, strict=True)]
        window = [n.value for n in longest if isinstance(n, Const)]
        if len(_offsets(window)) > UNROLLED:
            raise FallbackToAten

        def places(ops: Tracer, index: Sequence[Expr]) -> Iterator[Place]:
            for offset in _offsets(window):
                yield _shared(ops, index[lead:], offset, plane, wanted)

        return _largest(b, x, rank, places, lambda at: at)

    return rule


def adaptive_max_pool_backward(rank: int) -> Rule:
    """Return the rule of the gradient: each window gives to the element that it chose."""

    def rule(b: LoopBuilder, grad: TensorValue, x: TensorValue, places: TensorValue) -> TensorValue:
        return _scatter_gradient(b, grad, x, places, rank)

    return rule


def _flat(at: Sequence[Expr], plane: Sequence[Expr]) -> Expr:
    result: Expr = ZERO
    for i, size in zip(at, plane, strict=True):
        result = result * size + i
    return result


def _lowest(dtype: DType) -> int | float:
    if dtype.is_float:
        return float("-inf")
    return -(1 << (8 * dtype.size - 1)) if dtype.is_signed else 0


def max_pool_backward(rank: int) -> Rule:
    """Return the rule of the gradient: each input element gathers from windows that chose it, or
    each window scatters to the element that it chose, as the target prefers."""

    def rule(
        b: LoopBuilder,
        grad: TensorValue,
        x: TensorValue,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil: bool,
        places: TensorValue,
    ) -> TensorValue:
        window = expanded(kernel, rank)
        step = expanded(stride, rank, window)
        pad, spread = expanded(padding, rank), expanded(dilation, rank)
        if not known(window, step, pad, spread):
            raise FallbackToAten
        out = b.out
        lead = x.ndim - rank
        reach = [(w + s - 1) // s for w, s in zip(window, step, strict=True)]
        far = any(d != 1 for d in spread) or len(_offsets(reach)) > UNROLLED
        if far or scatters_back(b, out):
            return _scatter_gradient(b, grad, x, places, rank)
        dtype = out.dtype.compute
        dims = list(range(lead, x.ndim))

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            here = ops.index(_flat(index[lead:], x.shape[lead:]))
            total = ops.const(0, dtype)
            for offset in _offsets(reach):
                at = [
                    (i + p) // s - k
                    for i, p, s, k in zip(index[lead:], pad, step, offset, strict=True)
                ]
                whole = (*index[:lead], *at)
                mask = inside(ops, whole, grad.shape, dims)
                chosen = ops.eq(ops.cast(ops.load(places, whole, mask), DType.I64), here)
                if mask is not None:
                    chosen = chosen & mask
                total = total + ops.cast(ops.load(grad, whole, chosen), dtype)
            return total

        return b.pointwise(body, out)

    return rule


def _scatter_gradient(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, places: TensorValue, rank: int
) -> TensorValue:
    """Add each element of `grad` at the place in the plane that it came from."""
    out = b.out
    dtype = out.dtype.compute
    if not can(b, out.device.type, dtype, StoreMode.ADD):
        raise FallbackToAten
    total = b.pointwise(
        lambda ops, _: ops.const(0, dtype), Spec(dtype, out.device, out.shape, out.strides)
    )
    lead = x.ndim - rank
    plane = x.shape[lead:]

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        flat = ops.bind(ops.load(places, index), product_of(plane))
        at: list[Expr] = []
        step: Expr = ONE
        for size in reversed(plane):
            at.append((flat // step) % size)
            step = step * size
        value = ops.cast(ops.load(grad, index), dtype)
        ops.store(total, (*index[:lead], *reversed(at)), value, StoreMode.ADD)

    b.scatter(grad.shape, body)
    return settled(b, total, out)


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
        window = expanded(kernel, rank)
        step = expanded(stride, rank, window)
        pad = expanded(padding, rank)
        if not known(window, step, pad) or not x.dtype.is_float:
            raise FallbackToAten
        lead = x.ndim - rank
        out = b.out
        dtype = out.dtype.compute
        padded = any(pad) or ceil
        dims = list(range(lead, x.ndim))

        def term(ops: Tracer, index: Sequence[Expr], offset: Sequence[Any]) -> Value:
            whole = (*index[:lead], *read_at(index[lead:], offset, step, pad, [1] * rank))
            mask = inside(ops, whole, x.shape, dims) if padded else None
            return ops.cast(ops.load(x, whole, mask), dtype)

        def scale(ops: Tracer, index: Sequence[Expr], total: Value) -> Value:
            n = _divisor(index[lead:], x.shape[lead:], window, step, pad, ceil, count_include_pad)
            return total / operand(ops, divisor if divisor is not None else n, (), dtype)

        return windowed(b, window, out, dtype, term, scale)

    return rule


def windowed(
    b: LoopBuilder,
    window: Sequence[int],
    out: Spec,
    dtype: DType,
    term: Callable[[Tracer, Sequence[Expr], Sequence[Any]], Value],
    scale: Callable[[Tracer, Sequence[Expr], Value], Value],
) -> TensorValue:
    """Sum a window of terms: written out where it is small, else folded."""
    if len(_offsets(window)) <= UNROLLED:

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            total: Value | None = None
            for offset in _offsets(window):
                value = term(ops, index, offset)
                total = value if total is None else total + value
            assert total is not None
            return scale(ops, index, total)

        return b.pointwise(body, out)
    raw = b.buffer(Spec(dtype, out.device, out.shape, out.strides))
    b.reduction(
        ReduceKind.SUM,
        lambda ops, i, r: term(ops, i, r),
        out.shape,
        tuple(Const(w) for w in window),
        [raw],
        dtype,
    )
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
    """Return how many elements a window counts: with padding, or only those inside."""
    if include_pad and not ceil:
        return Const(_product(window))
    if not any(pad) and not ceil:
        return Const(_product(window))
    total: Expr = ONE
    for i, n, w, s, p in zip(index, plane, window, step, pad, strict=True):
        start = i * s - p
        end = minimum(start + w, n + p)
        if include_pad:
            total = total * (end - start)
        else:
            total = total * (minimum(end, n) - maximum(start, 0))
    return total


def _product(values: Sequence[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def avg_pool_backward(rank: int) -> Rule:
    """Return the rule of the gradient: each input element gathers from the windows it is in."""

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
        window = expanded(kernel, rank)
        step = expanded(stride, rank, window)
        pad = expanded(padding, rank)
        if not known(window, step, pad):
            raise FallbackToAten
        reach = [(w + s - 1) // s for w, s in zip(window, step, strict=True)]
        lead = x.ndim - rank
        out = b.out
        dtype = out.dtype.compute
        dims = list(range(lead, x.ndim))

        def term(ops: Tracer, index: Sequence[Expr], offset: Sequence[Any]) -> Value:
            at = [
                (i + p) // s - k for i, p, s, k in zip(index[lead:], pad, step, offset, strict=True)
            ]
            whole = (*index[:lead], *at)
            mask = inside(ops, whole, grad.shape, dims)
            for i, o, p, s, w in zip(index[lead:], at, pad, step, window, strict=True):
                if w % s:
                    covered = ops.lt(ops.index(i + p - o * s), w)
                    mask = covered if mask is None else mask & covered
            n = _divisor(at, x.shape[lead:], window, step, pad, ceil, count_include_pad)
            size = operand(ops, divisor if divisor is not None else n, (), dtype)
            value = ops.cast(ops.load(grad, whole, mask), dtype) / size
            return value if mask is None else ops.where(mask, value, 0.0)

        return windowed(b, reach, out, dtype, term, lambda _, __, total: total)

    return rule


def adaptive_avg_pool(rank: int) -> Rule:
    """Return the rule of `_adaptive_avg_pool<rank>d`: windows that share the plane evenly."""

    def rule(b: LoopBuilder, x: TensorValue, size: Any) -> TensorValue:
        lead = x.ndim - rank
        plane = x.shape[lead:]
        out = b.out
        wanted = out.shape[lead:]
        if not all(type(n) is Const for n in (*wanted, *plane)) and any(
            n is not ONE for n in wanted
        ):
            raise FallbackToAten
        dtype = out.dtype.compute
        window = tuple(_longest(n, w) for n, w in zip(plane, wanted, strict=True))

        def term(ops: Tracer, index: Sequence[Expr], r: Sequence[Expr]) -> Value:
            at, mask = _shared(ops, index[lead:], r, plane, wanted)
            return ops.cast(ops.load(x, (*index[:lead], *at), mask), dtype)

        raw = b.buffer(Spec(dtype, out.device, out.shape, out.strides))
        b.reduction(ReduceKind.SUM, term, out.shape, window, [raw], dtype)

        def scaled(ops: Tracer, index: Sequence[Expr]) -> Value:
            starts, ends = _edges(index[lead:], plane, wanted)
            n = product_of(e - s for s, e in zip(starts, ends, strict=True))
            return ops.load(raw, index) / operand(ops, n, (), dtype)

        return b.pointwise(scaled, out)

    return rule


def _shared(
    ops: Tracer,
    index: Sequence[Expr],
    offset: Sequence[Any],
    plane: Sequence[Expr],
    wanted: Sequence[Expr],
) -> Place:
    """Return an element of a window of those that share the plane evenly."""
    starts, ends = _edges(index, plane, wanted)
    at = [start + k for start, k in zip(starts, offset, strict=True)]
    mask: Value | None = None
    for i, end, n, w in zip(at, ends, plane, wanted, strict=True):
        if w is not ONE and (n % w) is not ZERO:
            low = ops.lt(ops.index(i), ops.index(end))
            mask = low if mask is None else mask & low
    return at, mask


def _edges(
    index: Sequence[Expr], plane: Sequence[Expr], wanted: Sequence[Expr]
) -> tuple[list[Expr], list[Expr]]:
    """Return first and last-plus-one of each window: floor(i n / w) and ceil((i + 1) n / w)."""
    starts: list[Expr] = []
    ends: list[Expr] = []
    for i, n, w in zip(index, plane, wanted, strict=True):
        starts.append((i * n) // w)
        ends.append(((i + 1) * n + w - 1) // w)
    return starts, ends


def _longest(n: Expr, w: Expr) -> Expr:
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
        plane, wanted = x.shape[lead:], grad.shape[lead:]
        if not all(type(n) is Const for n in (*wanted, *plane)) and any(
            n is not ONE for n in wanted
        ):
            raise FallbackToAten
        out = b.out
        dtype = out.dtype.compute
        reach = [_most_windows(n, w) for n, w in zip(plane, wanted, strict=True)]
        dims = list(range(lead, x.ndim))

        def term(ops: Tracer, index: Sequence[Expr], offset: Sequence[Any]) -> Value:
            first = [(i * w) // n for i, n, w in zip(index[lead:], plane, wanted, strict=True)]
            at = [f + k for f, k in zip(first, offset, strict=True)]
            whole = (*index[:lead], *at)
            starts, ends = _edges(at, plane, wanted)
            mask = inside(ops, whole, grad.shape, dims)
            for i, s, e in zip(index[lead:], starts, ends, strict=True):
                held = ops.ge(ops.index(i), ops.index(s)) & ops.lt(ops.index(i), ops.index(e))
                mask = held if mask is None else mask & held
            n = product_of(e - s for s, e in zip(starts, ends, strict=True))
            value = ops.cast(ops.load(grad, whole, mask), dtype) / operand(ops, n, (), dtype)
            return value if mask is None else ops.where(mask, value, 0.0)

        return windowed(b, reach, out, dtype, term, lambda _, __, total: total)

    return rule


def _most_windows(n: Expr, w: Expr) -> int:
    """Return how many windows, from floor(i w / n) on, may hold one element."""
    if w is ONE:
        return 1
    assert isinstance(n, Const) and isinstance(w, Const)
    total, parts = n.value, w.value
    most = 1
    for i in range(total):
        first = (i * parts) // total
        last = first
        while last < parts and (last * total) // parts <= i:
            last += 1
        most = max(most, last - first)
    return most


def max_unpool(rank: int) -> Rule:
    """Return the rule of `max_unpool` over `rank` dimensions: torch's decomposition writes to
    places that it does not check."""

    def rule(b: LoopBuilder, x: TensorValue, places: TensorValue, *_: Any) -> TensorValue:
        out = b.out
        if not can(b, out.device.type, out.dtype, StoreMode.SET):
            raise FallbackToAten
        result = b.pointwise(lambda ops, _: operand(ops, 0, (), out.dtype.compute), out)
        plane = out.shape[-rank:]

        def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
            flat = ops.bind(ops.load(places, index), product_of(plane), check=Check.RUNTIME)
            at = (*index[:-rank], *unravel(flat, plane))
            ops.store(result, at, ops.load(x, index))

        b.scatter(x.shape, body)
        return result

    return rule


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.max_unpool2d.default")(max_unpool(2))
    table.rule("aten.max_unpool3d.default")(max_unpool(3))
    for rank in (2, 3):
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
    for rank in (2, 3):
        table.rule(f"aten.avg_pool{rank}d.default")(avg_pool(rank))
        table.rule(f"aten.avg_pool{rank}d_backward.default")(avg_pool_backward(rank))
