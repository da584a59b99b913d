"""Ops with data-dependent sizes: counts, repetition, nonzero elements, rows of any length."""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve

from gyrator_ir.body.nodes import Check, ReduceKind, ScanKind, StoreMode
from gyrator_ir.expr import ONE, ZERO, Const, Expr, Sym, SymKind, contiguous_strides, product_of
from gyrator_ir.loop.nodes import ScalarRead
from gyrator_ir.types import DType
from gyrator_lowering.builder.assumed import assumed_size, require
from gyrator_lowering.builder.program import Body, LoopBuilder, unravel
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.index import index_tensor as indexed
from gyrator_lowering.rules.scatter import supports_store, to_output
from gyrator_lowering.table import FallbackToAten, TableBuilder

_INFINITY = float("inf")
_ANY_COUNT = Const((1 << 62) - 1)


def _require_adds(
    b: LoopBuilder, x: TensorValue, dtype: DType = DType.I64, scans: bool = True
) -> None:
    """Fall back to ATen if the device's kernels lack scans or atomic sums."""
    device = x.device.type
    able = supports_store(b, device, dtype, StoreMode.ADD)
    if not able or (scans and not b.targets[device].capabilities.scans):
        raise FallbackToAten


def _zeros(b: LoopBuilder, form: Spec) -> TensorValue:
    return b.pointwise(lambda ops, _: ops.const(0, form.dtype), form)


def bind_size(
    b: LoopBuilder,
    size: Expr,
    kind: ReduceKind,
    fn: Body,
    shape: Sequence[Expr],
    at: Spec,
    least: Expr = ZERO,
) -> None:
    """Bind `size` to a reduction of `fn(ops, index)` over `shape`, for which the host waits.

    Nothing is emitted if the graph already knows the size.
    """
    unknown = {s for s in size.free_symbols if s.kind is SymKind.UNBACKED} - b.bound_symbols
    is_assumed = assumed_size(b, b.node.meta["val"].shape) is not None
    if not unknown and not is_assumed:
        return
    symbol = b.symbols.fresh() if is_assumed else size
    if not isinstance(symbol, Sym):
        raise FallbackToAten
    form = evolve(at, dtype=DType.I64, shape=(), strides=())
    total = b.buffer(form)
    b.reduction(kind, lambda ops, _, index: fn(ops, index), (), shape, [total], DType.I64)
    result = b.pointwise(lambda ops, _: ops.maximum(ops.load(total, ()), ops.index(least)), form)
    b.bound_symbols.add(symbol)
    b.operations.append(ScalarRead(b.op_name(), result.ref, symbol, b.origin))
    if is_assumed:
        require(b, symbol, size)


def running_sum(b: LoopBuilder, fn: Body, size: Expr, like: TensorValue) -> TensorValue:
    """Return the inclusive prefix sums of `fn(ops, index)` over `size` elements."""
    sums = b.temp((size,), DType.I64, like)
    b.scan(ScanKind.SUM, fn, (size,), 0, [sums], DType.I64)
    return sums


def _counts_up_to(b: LoopBuilder, limits: TensorValue, size: Expr) -> TensorValue:
    """Return, for each of 0, 1, ... `size` - 1, how many of `limits`, numbers in [0, `size`], do
    not exceed it."""
    marks = _zeros(b, Spec(DType.I64, limits.device, (size + 1,), (ONE,)))

    def mark(ops: Tracer, index: Index) -> None:
        at = ops.bind(ops.load(limits, index), size + 1, check=Check.RUNTIME)
        ops.store(marks, (at,), ops.const(1, DType.I64), StoreMode.ADD)

    b.scatter(limits.shape, mark)
    return running_sum(b, lambda ops, index: ops.load(marks, index), size, limits)


# Counts ---------------------------------------------------------------------------------------


Ends = Callable[[Tracer], tuple[Value, Value]]
"""The lower and the upper end of a range."""


def histc(
    b: LoopBuilder, x: TensorValue, bins: int = 100, min: Any = 0, max: Any = 0
) -> TensorValue:
    """The number of elements in each of `bins` equal parts of a given range, or of the range of the
    elements if its ends are equal."""
    out = b.out
    known = isinstance(min, int | float) and isinstance(max, int | float) and min <= max
    if not known or x.dtype.is_narrow_float or not out.device.is_host:
        raise FallbackToAten
    _require_adds(b, x, scans=False)
    kind = DType.I64 if x.dtype.is_int else x.dtype
    ends: Ends = lambda ops: (ops.const(min, kind), ops.const(max, kind))  # noqa: E731
    if min == max:
        ends = _range_of(b, x)
    total = _zeros(b, evolve(out, dtype=DType.I64))

    def body(ops: Tracer, index: Index) -> None:
        low, high = ends(ops)
        value = ops.cast(ops.load(x, index), kind)
        mask = ops.ge(value, low) & ops.le(value, high)
        quotient = "truncdiv" if x.dtype.is_int else "div"
        position = ops.cast(ops.let(quotient, (value - low) * bins, high - low), DType.I64)
        if min == max:  # `high` may be `low` after rounding
            position = ops.where(ops.eq(low, high), ops.const(bins // 2, DType.I64), position)
        at = ops.bind(ops.minimum(position, bins - 1), out.shape[0], mask=mask)
        ops.store(total, (at,), ops.const(1, DType.I64), StoreMode.ADD, mask)

    b.scatter(x.shape, body)
    return to_output(b, total, out)


def _range_of(b: LoopBuilder, x: TensorValue) -> Ends:
    """Return the least and the greatest element, or numbers around them if they are equal.

    Kernels raise RuntimeError, as in eager mode, if one is not finite.
    """
    if not x.dtype.is_float or not all(isinstance(n, Const) and n.value for n in x.shape):
        raise FallbackToAten
    least, greatest = (b.temp((), x.dtype, x) for _ in range(2))
    for kind, end in ((ReduceKind.MIN, least), (ReduceKind.MAX, greatest)):
        b.reduction(kind, lambda ops, _, index: ops.load(x, index), (), x.shape, [end], x.dtype)

    def widened(ops: Tracer) -> tuple[Value, Value]:
        low, high = ops.load(least, ()), ops.load(greatest, ())
        one = ops.where(ops.eq(low, high), ops.const(1, x.dtype), ops.const(0, x.dtype))
        return low - one, high + one

    def checked(ops: Tracer, _: Index) -> Value:
        low, high = widened(ops)
        valid = (low <= high) & (low > -_INFINITY) & (high < _INFINITY)
        number = ops.where(valid, ops.const(0, DType.I64), ops.const(1, DType.I64))
        return ops.cast(ops.index(ops.bind(number, ONE, check=Check.RUNTIME)), x.dtype) + low

    low = b.pointwise(checked, Spec(x.dtype, x.device, (), ()))
    return lambda ops: (ops.load(low, ()), widened(ops)[1])


def bincount(
    b: LoopBuilder, x: TensorValue, weights: TensorValue | None = None, minlength: Any = 0
) -> TensorValue:
    """How often each number occurs, or the sum of the weights of its occurrences."""
    out = b.out
    if x.ndim != 1 or x.dtype is DType.BOOL or not out.device.is_host:
        raise FallbackToAten
    _require_adds(b, x, out.dtype, scans=False)

    def needed(ops: Tracer, index: Index) -> Value:
        return ops.cast(ops.load(x, index), DType.I64) + 1

    least = b.symbols.size(minlength)
    bind_size(b, out.shape[0], ReduceKind.MAX, needed, x.shape, out, least)
    total = _zeros(b, out)

    def body(ops: Tracer, index: Index) -> None:
        at = ops.bind(ops.load(x, index), out.shape[0], check=Check.RUNTIME)
        one = ops.const(1, out.dtype) if weights is None else ops.load(weights, index)
        ops.store(total, (at,), one, StoreMode.ADD)

    b.scatter(x.shape, body)
    return total


# Repetition -----------------------------------------------------------------------------------


def repeat_interleave(
    b: LoopBuilder, times: TensorValue, *, output_size: Any = None
) -> TensorValue:
    """Each index of `times`, repeated as often as its element says."""
    if times.ndim != 1:
        raise FallbackToAten
    _require_adds(b, times)
    out = b.out
    (count,), (size,) = times.shape, out.shape

    def repeats(ops: Tracer, index: Index) -> Value:
        return ops.index(ops.bind(ops.load(times, index), _ANY_COUNT, check=Check.RUNTIME))

    bind_size(b, size, ReduceKind.SUM, repeats, times.shape, out)
    ends_passed = _counts_up_to(b, running_sum(b, repeats, count, times), size)

    def body(ops: Tracer, index: Index) -> Value:
        position = ops.bind(ops.load(ends_passed, index), count, check=Check.RUNTIME)
        return ops.cast(ops.index(position), out.dtype)

    return b.pointwise(body)


# Nonzero elements -----------------------------------------------------------------------------


_MOST_ON_DEVICES = 1 << 22
"""The number of elements up to which a prefix sum on a device is as fast as ATen's: it is written
and read once."""


def _nonzero(b: LoopBuilder, x: TensorValue, size: Expr, at: Spec) -> tuple[Body, Body]:
    """Bind `size` to the number of nonzero elements of `x`.

    Returns two bodies: whether an element is nonzero, and the number of nonzero elements up to it.
    """
    _require_adds(b, x)
    total = product_of(x.shape)
    if ZERO in x.shape:
        raise FallbackToAten
    if not x.device.is_host and isinstance(total, Const) and total.value > _MOST_ON_DEVICES:
        raise FallbackToAten

    def counts(ops: Tracer, index: Index) -> Value:
        value = ops.load(x, index)
        return value if x.dtype is DType.BOOL else ops.ne(ops.wide(value), 0)

    def as_integer(ops: Tracer, index: Index) -> Value:
        return ops.cast(counts(ops, index), DType.I64)

    bind_size(b, size, ReduceKind.SUM, as_integer, x.shape, at)
    flat = running_sum(b, lambda ops, index: as_integer(ops, unravel(index[0], x.shape)), total, x)
    running = evolve(flat, shape=x.shape, strides=contiguous_strides(x.shape))
    return counts, lambda ops, index: ops.load(running, index)


def nonzero(b: LoopBuilder, x: TensorValue) -> TensorValue:
    """The indices of all nonzero elements, in row-major order."""
    out = b.out
    if not x.ndim:
        raise FallbackToAten
    counts, upto = _nonzero(b, x, out.shape[0], out)
    result = _zeros(b, out)

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        mask = counts(ops, index)
        at = ops.bind(upto(ops, index) - 1, out.shape[0], check=False, mask=mask)
        for d, i in enumerate(index):
            ops.store(result, (at, Const(d)), ops.index(i), mask=mask)

    b.scatter(x.shape, body)
    return result


def index_tensor(
    b: LoopBuilder, x: TensorValue, indices: Sequence[TensorValue | None]
) -> TensorValue:
    """`x[indices]`; a mask may be the only index."""
    tensors = [(d, p) for d, p in enumerate(indices) if p is not None]
    if len(tensors) != 1 or tensors[0][1].dtype is not DType.BOOL or not tensors[0][1].ndim:
        return indexed(b, x, indices)
    ((d, mask),) = tensors
    out = b.out
    counts, upto = _nonzero(b, mask, out.shape[d], out)
    result = _zeros(b, out)

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        inner = index[d : d + mask.ndim]
        is_selected = counts(ops, inner)
        at = ops.bind(upto(ops, inner) - 1, out.shape[d], check=False, mask=is_selected)
        position = (*index[:d], at, *index[d + mask.ndim :])
        ops.store(result, position, ops.load(x, index, is_selected), mask=is_selected)

    b.scatter(x.shape, body)
    return result


# Rows of any length ---------------------------------------------------------------------------


def padded(
    b: LoopBuilder,
    values: TensorValue,
    offsets: Sequence[TensorValue],
    lengths: Sequence[Any],
    padding: float = 0.0,
) -> TensorValue:
    """Rows of any length, which start at `offsets`, padded to rows of one length."""
    (starts,) = offsets

    def body(ops: Tracer, index: Index) -> Value:
        row, j, *rest = index
        first, end = (ops.cast(ops.load(starts, (at,)), DType.I64) for at in (row, row + 1))
        position = first + ops.index(j)
        mask = ops.lt(position, end)
        at = ops.bind(position, values.shape[0], check=Check.RUNTIME, mask=mask)
        return ops.masked_load(values, (at, *rest), mask, padding)

    return b.pointwise(body)


def jagged(
    b: LoopBuilder, dense: TensorValue, offsets: Sequence[TensorValue], total: Any = None
) -> TensorValue:
    """Rows of any length, each stored in a row of `dense`."""
    out = b.out
    (size, *_), (starts,) = out.shape, offsets
    _require_adds(b, starts)
    bind_size(
        b, size, ReduceKind.MAX, lambda ops, index: ops.load(starts, index), starts.shape, out
    )
    rows = _counts_up_to(b, starts, size)

    def body(ops: Tracer, index: Index) -> Value:
        row = ops.load(rows, index[:1]) - 1
        at = ops.bind(row, dense.shape[0], check=Check.RUNTIME)
        first = ops.cast(ops.load(starts, (at,)), DType.I64)
        position = ops.bind(ops.index(index[0]) - first, dense.shape[1], check=Check.RUNTIME)
        return ops.load(dense, (at, position, *index[1:]))

    return b.pointwise(body)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.histc.default")(histc)
    table.rule("aten.bincount.default")(bincount)
    table.rule("aten.repeat_interleave.Tensor")(repeat_interleave)
    table.rule("aten.nonzero.default")(nonzero)
    table.rule("aten.index.Tensor")(index_tensor)
    table.rule("aten._jagged_to_padded_dense_forward.default")(padded)
    table.rule("aten._padded_dense_to_jagged_forward.default")(jagged)
