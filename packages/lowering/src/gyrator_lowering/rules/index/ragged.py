"""Ops whose sizes values decide: counts, repetition, elements that count, rows of any length."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from gyrator_ir.body.nodes import Check, ReduceKind, ScanKind, StoreMode
from gyrator_ir.expr import ONE, ZERO, Const, Expr, Sym, SymKind, product_of
from gyrator_ir.loop.nodes import ScalarRead
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import Body, LoopBuilder, unravel
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue, contiguous_strides
from gyrator_lowering.rules.index import index_tensor as indexed
from gyrator_lowering.rules.scatter import can, settled
from gyrator_lowering.table import FallbackToAten, TableBuilder

_ANY_COUNT = Const((1 << 62) - 1)


def _adds(b: LoopBuilder, x: TensorValue, dtype: DType = DType.I64, scans: bool = True) -> None:
    """Give way to ATen where the device's kernels lack running or scattered sums."""
    device = x.device.type
    able = can(b, device, dtype, StoreMode.ADD)
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
    """Bind `size` to a fold of `fn(ops, index)` over `shape`, for which the host waits.

    A size that the graph knows is left alone.
    """
    unknown = {s for s in size.free_symbols if s.kind is SymKind.UNBACKED} - b.known
    if not unknown:
        return
    if not isinstance(size, Sym):
        raise FallbackToAten
    form = evolve(at, dtype=DType.I64, shape=(), strides=())
    folded = b.buffer(form)
    b.reduction(kind, lambda ops, _, index: fn(ops, index), (), shape, [folded], DType.I64)
    result = b.pointwise(lambda ops, _: ops.maximum(ops.load(folded, ()), ops.index(least)), form)
    b.known.add(size)
    b.operations.append(ScalarRead(b.op_name(), result.ref, size, b.origin))


def running_sum(b: LoopBuilder, fn: Body, size: Expr, like: TensorValue) -> TensorValue:
    """Return the sums of `fn(ops, index)` up to each of `size` places."""
    found = b.temp((size,), DType.I64, like)
    b.scan(ScanKind.SUM, fn, (size,), 0, [found], DType.I64)
    return found


def reached(b: LoopBuilder, limits: TensorValue, size: Expr) -> TensorValue:
    """Return how many of `limits`, numbers in [0, `size`], are at most 0, 1, ... `size` - 1."""
    marks = _zeros(b, Spec(DType.I64, limits.device, (size + 1,), (ONE,)))

    def mark(ops: Tracer, index: Index) -> None:
        at = ops.bind(ops.load(limits, index), size + 1, check=Check.RUNTIME)
        ops.store(marks, (at,), ops.const(1, DType.I64), StoreMode.ADD)

    b.scatter(limits.shape, mark)
    return running_sum(b, lambda ops, index: ops.load(marks, index), size, limits)


# Counts ---------------------------------------------------------------------------------------


def histc(
    b: LoopBuilder, x: TensorValue, bins: int = 100, min: Any = 0, max: Any = 0
) -> TensorValue:
    """How many elements lie in each of `bins` equal parts of a range that is given."""
    out = b.out
    given = isinstance(min, int | float) and isinstance(max, int | float) and min < max
    if not given or x.dtype.is_narrow_float or not out.device.is_host:
        raise FallbackToAten
    _adds(b, x, scans=False)
    total = _zeros(b, evolve(out, dtype=DType.I64))
    kind = DType.I64 if x.dtype.is_int else x.dtype

    def body(ops: Tracer, index: Index) -> None:
        low, high = ops.const(min, kind), ops.const(max, kind)
        value = ops.cast(ops.load(x, index), kind)
        keep = ops.ge(value, low) & ops.le(value, high)
        quotient = "truncdiv" if x.dtype.is_int else "div"
        place = ops.let(quotient, (value - low) * bins, high - low)
        at = ops.bind(ops.minimum(ops.cast(place, DType.I64), bins - 1), out.shape[0], mask=keep)
        ops.store(total, (at,), ops.const(1, DType.I64), StoreMode.ADD, keep)

    b.scatter(x.shape, body)
    return settled(b, total, out)


def bincount(
    b: LoopBuilder, x: TensorValue, weights: TensorValue | None = None, minlength: Any = 0
) -> TensorValue:
    """How often each number occurs, or the sum of the weights of its places."""
    out = b.out
    if x.ndim != 1 or x.dtype is DType.BOOL or not out.device.is_host:
        raise FallbackToAten
    _adds(b, x, out.dtype, scans=False)

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
    """Each place of `times` as often as its element says."""
    if times.ndim != 1:
        raise FallbackToAten
    _adds(b, times)
    out = b.out
    (count,), (size,) = times.shape, out.shape

    def repeats(ops: Tracer, index: Index) -> Value:
        return ops.index(ops.bind(ops.load(times, index), _ANY_COUNT, check=Check.RUNTIME))

    bind_size(b, size, ReduceKind.SUM, repeats, times.shape, out)
    found = reached(b, running_sum(b, repeats, count, times), size)

    def body(ops: Tracer, index: Index) -> Value:
        place = ops.bind(ops.load(found, index), count, check=Check.RUNTIME)
        return ops.cast(ops.index(place), out.dtype)

    return b.pointwise(body)


# Elements that count --------------------------------------------------------------------------


_MOST_ON_DEVICES = 1 << 22
"""Elements whose running sum on a device is as quick as ATen's: it is written and read once."""


def _elements(b: LoopBuilder, x: TensorValue, size: Expr, at: Spec) -> tuple[Body, Body]:
    """Bind `size` to how many elements of `x` are not 0.

    Returns two bodies: whether an element counts, and how many do up to it.
    """
    _adds(b, x)
    total = product_of(x.shape)
    if ZERO in x.shape:
        raise FallbackToAten
    if not x.device.is_host and isinstance(total, Const) and total.value > _MOST_ON_DEVICES:
        raise FallbackToAten

    def counts(ops: Tracer, index: Index) -> Value:
        value = ops.load(x, index)
        return value if x.dtype is DType.BOOL else ops.ne(ops.wide(value), 0)

    def one(ops: Tracer, index: Index) -> Value:
        return ops.cast(counts(ops, index), DType.I64)

    bind_size(b, size, ReduceKind.SUM, one, x.shape, at)
    flat = running_sum(b, lambda ops, index: one(ops, unravel(index[0], x.shape)), total, x)
    found = evolve(flat, shape=x.shape, strides=contiguous_strides(x.shape))
    return counts, lambda ops, index: ops.load(found, index)


def nonzero(b: LoopBuilder, x: TensorValue) -> TensorValue:
    """The indices of all elements that are not 0, in row-major order."""
    out = b.out
    if not x.ndim:
        raise FallbackToAten
    counts, upto = _elements(b, x, out.shape[0], out)
    result = _zeros(b, out)

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        keep = counts(ops, index)
        at = ops.bind(upto(ops, index) - 1, out.shape[0], check=False, mask=keep)
        for d, i in enumerate(index):
            ops.store(result, (at, Const(d)), ops.index(i), mask=keep)

    b.scatter(x.shape, body)
    return result


def index_tensor(
    b: LoopBuilder, x: TensorValue, places: Sequence[TensorValue | None]
) -> TensorValue:
    """`x[places]`; a mask may be the only index."""
    given = [(d, p) for d, p in enumerate(places) if p is not None]
    if len(given) != 1 or given[0][1].dtype is not DType.BOOL or not given[0][1].ndim:
        return indexed(b, x, places)
    ((d, mask),) = given
    out = b.out
    counts, upto = _elements(b, mask, out.shape[d], out)
    result = _zeros(b, out)

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        inner = index[d : d + mask.ndim]
        keep = counts(ops, inner)
        at = ops.bind(upto(ops, inner) - 1, out.shape[d], check=False, mask=keep)
        place = (*index[:d], at, *index[d + mask.ndim :])
        ops.store(result, place, ops.load(x, index, keep), mask=keep)

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
    """Rows of any length, which start at `offsets`, in rows of one length."""
    (starts,) = offsets

    def body(ops: Tracer, index: Index) -> Value:
        row, j, *rest = index
        first, end = (ops.cast(ops.load(starts, (at,)), DType.I64) for at in (row, row + 1))
        place = first + ops.index(j)
        keep = ops.lt(place, end)
        at = ops.bind(place, values.shape[0], check=Check.RUNTIME, mask=keep)
        return ops.masked_load(values, (at, *rest), keep, padding)

    return b.pointwise(body)


def jagged(
    b: LoopBuilder, dense: TensorValue, offsets: Sequence[TensorValue], total: Any = None
) -> TensorValue:
    """Rows of any length, of which `dense` holds each in a row of one length."""
    out = b.out
    (size, *_), (starts,) = out.shape, offsets
    _adds(b, starts)
    bind_size(
        b, size, ReduceKind.MAX, lambda ops, index: ops.load(starts, index), starts.shape, out
    )
    rows = reached(b, starts, size)

    def body(ops: Tracer, index: Index) -> Value:
        row = ops.load(rows, index[:1]) - 1
        at = ops.bind(row, dense.shape[0], check=Check.RUNTIME)
        first = ops.cast(ops.load(starts, (at,)), DType.I64)
        place = ops.bind(ops.index(index[0]) - first, dense.shape[1], check=Check.RUNTIME)
        return ops.load(dense, (at, place, *index[1:]))

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
