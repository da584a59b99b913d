"""Indexed writes, and tensors with a part replaced."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

from attrs import evolve

from gyrator_ir.body.nodes import Check, ReduceKind, StoreMode
from gyrator_ir.expr import ONE, ZERO, Const, Expr, SymKind, eq, product_of
from gyrator_ir.loop.nodes import AssertCond
from gyrator_ir.modes import Numerics
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.slices import selected_index, wrapped_index
from gyrator_lowering.builder.trace import Tracer, Value, conjunction
from gyrator_lowering.builder.values import Spec, TensorValue, broadcast_shape
from gyrator_lowering.rules.bits.aten_sums import GRAIN, integers
from gyrator_lowering.rules.index import below, indexed, reads_no_index, slice_range, with_masks
from gyrator_lowering.rules.view import surely_in_bounds
from gyrator_lowering.table import FallbackToAten, TableBuilder
from gyrator_lowering.torch_bridge.facts import facts_of

MODES = {
    "sum": StoreMode.ADD, "add": StoreMode.ADD, "prod": StoreMode.MUL, "multiply": StoreMode.MUL,
    "amax": StoreMode.MAX, "amin": StoreMode.MIN,
}  # fmt: skip


def check_shape(
    b: LoopBuilder,
    shape: Sequence[Expr],
    expected: Sequence[Expr],
    message: str,
    broadcast: bool = True,
) -> None:
    """Check that a tensor has a shape or, with `broadcast`, broadcasts to it. torch's fake kernels
    of these ops do not check this, and kernels would read out of bounds.

    Symbolic sizes are compared when the program runs, which raises RuntimeError.

    Raises:
        FallbackToAten: if the shapes differ, or may be broadcast at run time; ATen reports the
            error.
    """
    if len(shape) > len(expected):
        raise FallbackToAten
    for size, expected_size in zip(reversed(shape), reversed(expected), strict=False):
        if size is expected_size or (broadcast and size is ONE):
            continue
        symbols = size.free_symbols | expected_size.free_symbols
        if not symbols or any(s.kind is SymKind.UNBACKED for s in symbols):
            raise FallbackToAten
        b.operations.append(AssertCond(b.op_name(), eq(size, expected_size), message, b.origin))


def supports_store(
    b: LoopBuilder, device: str, dtype: DType, mode: StoreMode, determined: bool = False
) -> bool:
    """Return whether kernels on the device support a store mode and, in deterministic mode, whether
    the result is determined.

    It is if it does not depend on the order of stores; `determined` says that all stores write the
    same value, or that they happen in ATen's order (`has_atens_order`).
    """
    exact = mode in (StoreMode.MIN, StoreMode.MAX) or (mode is not StoreMode.SET and dtype.is_int)
    if b.options.deterministic and not (determined or exact):
        return False
    target = b.targets.get(device)
    return mode is StoreMode.SET or (
        target is not None and (dtype, mode) in target.capabilities.atomics
    )


def has_atens_order(b: LoopBuilder, shape: Sequence[Expr], mode: StoreMode) -> bool:
    """Return whether a scatter over `shape` leaves the bits of ATen's op, if only elements that
    differ along one axis have the same address: both store those one after another. ATen
    distributes many elements among threads, and rounds every step to narrow floats."""
    target, out = b.targets.get(b.out.device.type), b.out
    if b.options.numerics is not Numerics.BITWISE or target is None:
        return False
    if not target.capabilities.ordered_stores or not all(isinstance(s, Const) for s in shape):
        return False
    if mode not in (StoreMode.SET, StoreMode.ADD) or prod(integers(shape)) >= GRAIN:
        return False
    return mode is StoreMode.SET or out.dtype is out.dtype.compute


def prefers_scatter(b: LoopBuilder, out: Spec) -> bool:
    """Return whether a gradient with spec `out` should be scattered rather than gathered."""
    device = out.device.type
    if not supports_store(b, device, out.dtype.compute, StoreMode.ADD):
        return False
    return b.targets[device].heuristics.scatter_choices


def accumulator(
    b: LoopBuilder, x: TensorValue, mode: StoreMode, determined: bool = False
) -> TensorValue:
    """Return a copy of `x` to scatter into, in a dtype in which the device's kernels accumulate.
    See `supports_store`.

    Raises:
        FallbackToAten: if there is none.
    """
    out = b.out
    dtype = out.dtype if mode is StoreMode.SET else out.dtype.compute
    if dtype is DType.BOOL and mode is not StoreMode.SET:
        raise FallbackToAten
    if not supports_store(b, out.device.type, dtype, mode, determined):
        raise FallbackToAten
    return b.pointwise(lambda ops, index: ops.get(x, index), evolve(out, dtype=dtype))


def to_output(b: LoopBuilder, value: TensorValue, out: Spec | None = None) -> TensorValue:
    """Return an accumulator as a result (by default the node's), rounded once."""
    out = b.out if out is None else out
    return value if value.dtype is out.dtype else b.copy(value, out)


Term = tuple[Sequence[Expr], Value, Value | None]
"""An index, the value to add there, and an optional mask."""


def scatter_sum(
    b: LoopBuilder,
    shape: Sequence[Expr],
    terms: Callable[[Tracer, tuple[Expr, ...]], Iterable[Term]],
    determined: bool = False,
) -> TensorValue:
    """Return a result in which each element is the sum of the terms that the elements of `shape`
    add to it, accumulated in the compute dtype. See `supports_store`.

    Raises:
        FallbackToAten: if the device's kernels do not support atomic additions.
    """
    out, dtype = b.out, b.out.dtype.compute
    if not supports_store(b, out.device.type, dtype, StoreMode.ADD, determined):
        raise FallbackToAten
    total = b.pointwise(lambda ops, _: ops.const(0, dtype), evolve(out, dtype=dtype))

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        for position, value, mask in terms(ops, index):
            ops.store(total, tuple(position), value, StoreMode.ADD, mask)

    b.scatter(shape, body)
    return to_output(b, total)


def embedding_backward(
    b: LoopBuilder,
    grad: TensorValue,
    indices: TensorValue,
    rows: Any,
    padding: Any,
    scale_by_frequency: bool,
) -> TensorValue:
    """Sum the rows of `grad` at the indices that they were read from, except at `padding`."""
    if scale_by_frequency:
        raise FallbackToAten
    out, skip = b.out, b.symbols.size(padding)
    flat_indices, flat_grad = (_with_one_axis(t, indices.ndim) for t in (indices, grad))
    if flat_grad.ndim == flat_indices.ndim + 1:
        indices, grad = flat_indices, flat_grad
    if _are_summed(b, out):
        return _sums_of_rows(b, grad, indices, skip)
    determined = indices.ndim == 1 and has_atens_order(b, grad.shape, StoreMode.ADD)

    def terms(ops: Tracer, index: tuple[Expr, ...]) -> Iterator[Term]:
        at = ops.cast(ops.load(indices, index[:-1]), DType.I64)
        mask = ops.ne(at, ops.index(skip)) if skip is not Const(-1) else None
        row = ops.bind(at, out.shape[0], mask=mask)
        yield (row, index[-1]), ops.cast(ops.load(grad, index), out.dtype.compute), mask

    return scatter_sum(b, grad.shape, terms, determined)


def _are_summed(b: LoopBuilder, table: Spec) -> bool:
    """Return whether the gradient of a table is a sum for each row: of a table so small that atomic
    additions would wait for each other."""
    target = b.targets.get(table.device.type)
    if target is None or b.options.numerics is Numerics.BITWISE:
        return False
    if not all(isinstance(s, Const) for s in table.shape):
        return False
    rows, width = integers(table.shape)
    most = target.heuristics.summed_rows
    return rows <= most and rows * width <= most * most


def _sums_of_rows(
    b: LoopBuilder, grad: TensorValue, indices: TensorValue, skip: Expr
) -> TensorValue:
    """Sum, for each row of the table, the rows of `grad` that were read from it."""
    out, dtype = b.out, b.out.dtype.compute
    total = b.buffer(evolve(out, dtype=dtype))

    def read(ops: Tracer, index: tuple[Expr, ...], at: tuple[Expr, ...]) -> Value:
        row, column = index
        belongs = ops.eq(ops.cast(ops.load(indices, at), DType.I64), ops.index(row))
        if skip is not Const(-1):
            belongs &= ops.ne(ops.index(row), ops.index(skip))
        value = ops.cast(ops.load(grad, (*at, column)), dtype)
        return ops.where(belongs, value, ops.const(0, dtype))

    b.reduction(ReduceKind.SUM, read, out.shape, indices.shape, [total], dtype)
    return to_output(b, total)


def _with_one_axis(x: TensorValue, count: int) -> TensorValue:
    """Return `x` with its first `count` dimensions merged into one, if its strides allow that."""
    shape, strides = x.shape[:count], x.strides[:count]
    steps = [n * s for n, s in zip(shape[1:], strides[1:], strict=True)]
    if count < 2 or list(strides[:-1]) != steps:
        return x
    merged = (product_of(shape), *x.shape[count:])
    return evolve(x, shape=merged, strides=x.strides[count - 1 :])


def index_put(
    b: LoopBuilder,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool = False,
    *,
    check: bool = True,
) -> TensorValue:
    """`x` after `x[indices] = values`, or `+=`. Without `check`, indices are known to be in
    bounds."""
    if all(p is None for p in indices) or reads_no_index(b, indices) or len(indices) > x.ndim:
        raise FallbackToAten
    if with_masks(indices):
        return _masked_put(b, x, indices, values, accumulate)
    mode = StoreMode.ADD if accumulate else StoreMode.SET
    uniform = mode is StoreMode.SET and all(size is ONE for size in values.shape)
    block, shape = _block_shape(x, indices)
    for tensor in indices:
        shape_of_index = () if tensor is None else tensor.shape
        check_shape(b, shape_of_index, block, "indices have different shapes")
    check_shape(
        b, values.shape, shape, "values cannot be broadcast to the shape of what is indexed"
    )
    in_order = len(block) == 1 and has_atens_order(b, shape, mode)
    result = accumulator(b, x, mode, uniform or in_order)

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        at = indexed(ops, x, indices, index, check=check)
        ops.store(result, at, ops.get(values, index), mode)

    b.scatter(shape, body)
    return to_output(b, result)


def unsafe_index_put(b: LoopBuilder, *args: Any, **kwargs: Any) -> TensorValue:
    """`index_put` with indices known to be in bounds."""
    return index_put(b, *args, **kwargs, check=False)


def _masked_put(
    b: LoopBuilder,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool,
) -> TensorValue:
    """`x[mask] = number`, as a selection. Other masked writes stay in ATen, and so do masks whose
    sizes may differ from the tensor's, which ATen refuses."""
    mask = indices[0]
    if len(indices) != 1 or mask is None or mask.dtype is not DType.BOOL or accumulate:
        raise FallbackToAten
    if mask.shape != x.shape[: mask.ndim]:
        raise FallbackToAten
    if any(size is not ONE for size in values.shape):
        raise FallbackToAten
    dtype = b.out.dtype

    def body(ops: Tracer, index: tuple[Expr, ...]) -> Value:
        chosen = ops.load(mask, index[: mask.ndim])
        number = ops.load(values, (ZERO,) * values.ndim)
        return ops.where(chosen, ops.cast(number, dtype), ops.load(x, index))

    return b.pointwise(body)


def _block_shape(
    x: TensorValue, indices: Sequence[TensorValue | None]
) -> tuple[Sequence[Expr], tuple[Expr, ...]]:
    """Return the broadcast shape of all indices, and that of `x[indices]`."""
    block = broadcast_shape([p for p in indices if p is not None])
    dims = [d for d, p in enumerate(indices) if p is not None]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    rest = [s for d, s in enumerate(x.shape) if d not in dims]
    start = dims[0] if adjacent else 0
    return block, (*rest[:start], *block, *rest[start:])


def scatter_into(
    b: LoopBuilder,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: Any,
    mode: StoreMode,
    first: Any = None,
) -> TensorValue:
    """Store `source` at `indices` along `dim` of a copy of `x`.

    `first`, a number, is stored there before, so that the elements of `x` do not contribute.
    """
    if x.ndim == 0 or indices.ndim != x.ndim:
        raise FallbackToAten
    uniform = mode is StoreMode.SET and not isinstance(source, TensorValue)
    in_order = has_atens_order(b, indices.shape, mode) and first is None
    result = accumulator(b, x, mode, uniform or in_order)
    d = dim % x.ndim

    def at(ops: Tracer, index: Sequence[Expr]) -> tuple[Expr, ...]:
        row = ops.bind(ops.load(indices, index), x.shape[d], wrap=False, check=Check.RUNTIME)
        return (*index[:d], row, *index[d + 1 :])

    def start(ops: Tracer, index: tuple[Expr, ...]) -> None:
        ops.store(result, at(ops, index), ops.const(first, result.dtype))

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        if isinstance(source, TensorValue):
            value = ops.cast(ops.load(source, index), result.dtype)
        else:
            value = operand(ops, source, index, result.dtype)
        ops.store(result, at(ops, index), value, mode)

    if first is not None:
        b.scatter(indices.shape, start)
    b.scatter(indices.shape, body)
    return to_output(b, result)


def scatter(
    b: LoopBuilder,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: Any,
    *,
    reduce: str | None = None,
) -> TensorValue:
    """`x` with elements of `source` (a tensor or a number) stored at indices along `dim`."""
    mode = StoreMode.SET if reduce is None else MODES[reduce]
    return scatter_into(b, x, dim, indices, source, mode)


def scatter_add(
    b: LoopBuilder, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue
) -> TensorValue:
    """`x` with elements of `source` added at indices along `dim`."""
    return scatter_into(b, x, dim, indices, source, StoreMode.ADD)


def scatter_reduce(
    b: LoopBuilder,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    """`x` reduced with elements of `source` at indices along `dim`."""
    if reduce not in MODES or x.dtype is DType.BOOL:
        raise FallbackToAten
    identity = None if include_self else _identity(x.dtype, reduce)
    return scatter_into(b, x, dim, indices, source, MODES[reduce], identity)


def _identity(dtype: DType, reduce: str) -> int | float:
    if reduce in ("sum", "prod"):
        return 0 if reduce == "sum" else 1
    return dtype.limits[reduce == "amin"]


def index_add(
    b: LoopBuilder,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    *,
    alpha: Any = 1,
) -> TensorValue:
    """`x` with slices of `alpha * source` added at the indices of a vector."""
    check = Check.RUNTIME if x.ndim > 1 else Check.INDEX
    return _store_slices(b, x, dim, indices, source, alpha, StoreMode.ADD, check)


def index_copy(
    b: LoopBuilder, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue
) -> TensorValue:
    """`x` with the slices of `source` stored at the non-negative indices of a vector."""
    return _store_slices(b, x, dim, indices, source, 1, StoreMode.SET, Check.INDEX)


def _store_slices(
    b: LoopBuilder,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    alpha: Any,
    mode: StoreMode,
    check: Check,
) -> TensorValue:
    if x.ndim == 0 or indices.ndim == 0 or source.ndim != x.ndim:
        raise FallbackToAten
    d = dim % x.ndim
    _require_slices(b, x, d)
    expected = (*x.shape[:d], indices.shape[0], *x.shape[d + 1 :])
    check_shape(
        b, source.shape, expected, "the source has another shape than what it goes to", False
    )
    in_order = has_atens_order(b, source.shape, mode) and alpha in (1, 1.0)
    result = accumulator(b, x, mode, in_order)

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        row = ops.bind(ops.load(indices, (index[d],)), x.shape[d], check=check)
        value = ops.cast(ops.load(source, index), result.dtype)
        if not (isinstance(alpha, (int, float)) and alpha == 1):
            value = value * operand(ops, alpha, (), result.dtype)
        ops.store(result, (*index[:d], row, *index[d + 1 :]), value, mode)

    b.scatter(source.shape, body)
    return to_output(b, result)


def _require_slices(b: LoopBuilder, x: TensorValue, d: int) -> None:
    """Raise FallbackToAten if `x` may have no slices along `d`: ATen's ops then ignore the indices,
    or refuse them with another exception."""
    size = x.shape[d]
    positive = size.value > 0 if type(size) is Const else facts_of(b.symbols).known_positive(size)
    if not positive:
        raise FallbackToAten


def index_fill(
    b: LoopBuilder, x: TensorValue, dim: int, indices: TensorValue, value: Any
) -> TensorValue:
    """`x` with a number stored in the slices at the indices of a vector."""
    if x.ndim == 0 or indices.ndim == 0:
        raise FallbackToAten
    d = dim % x.ndim
    _require_slices(b, x, d)
    result = accumulator(b, x, StoreMode.SET, determined=True)

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        row = ops.bind(ops.load(indices, (index[d],)), x.shape[d], wrap=True)
        number = operand(ops, value, (), result.dtype)
        ops.store(result, (*index[:d], row, *index[d + 1 :]), number)

    b.scatter((*x.shape[:d], indices.shape[0], *x.shape[d + 1 :]), body)
    return to_output(b, result)


# A part replaced ------------------------------------------------------------------------------


Part = Callable[[Tracer, Sequence[Expr]], tuple[Value | None, tuple[Expr, ...]]]
"""Returns whether an index is in a part of a tensor (None if always), and its index there."""


def _replaced(
    b: LoopBuilder, x: TensorValue | None, source: TensorValue, part: Part
) -> TensorValue:
    """`x`, or zeros, with a part replaced by `source`."""

    def body(ops: Tracer, index: tuple[Expr, ...]) -> Value:
        mask, at = part(ops, index)
        if mask is None:
            return ops.cast(ops.get(source, at), b.out.dtype)
        at = tuple(ZERO if s is ONE else i for s, i in zip(source.shape, at, strict=True))
        value = ops.cast(ops.load(source, at, mask), b.out.dtype)
        return value if x is None else ops.where(mask, value, ops.load(x, index))

    return b.pointwise(body)


def _slice(b: LoopBuilder, d: int, size: Expr, start: Any, end: Any, step: Any) -> Part:
    """Return the slice along dimension `d`, which has `size` elements."""
    low, high = slice_range(b, size, start, end)
    stride = b.symbols.size(step)

    def part(ops: Tracer, index: Sequence[Expr]) -> tuple[Value | None, tuple[Expr, ...]]:
        i = index[d]
        mask: Value | None = None
        if low is not ZERO:
            mask = ops.ge(ops.index(i), ops.index(low))
        if high is not size:
            mask = conjunction(mask, [below(ops, i, high)])
        position = i - low
        if stride is not ONE:
            mask = conjunction(mask, [ops.eq(ops.index(position % stride), 0)])
            position = position // stride
        return mask, (*index[:d], position, *index[d + 1 :])

    return part


def _selection(d: int, position: Expr) -> Part:
    """Return the part at one position along dimension `d`, without that dimension."""

    def part(ops: Tracer, index: Sequence[Expr]) -> tuple[Value, tuple[Expr, ...]]:
        mask = ops.eq(ops.index(index[d]), ops.index(position))
        return mask, (*index[:d], *index[d + 1 :])

    return part


def slice_scatter(
    b: LoopBuilder,
    x: TensorValue,
    source: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> TensorValue:
    """`x` with a slice replaced by `source`."""
    d = dim % x.ndim
    return _replaced(b, x, source, _slice(b, d, x.shape[d], start, end, step))


def slice_backward(
    b: LoopBuilder,
    grad: TensorValue,
    sizes: Sequence[Any],
    dim: int,
    start: Any,
    end: Any,
    step: Any,
) -> TensorValue:
    """Zeros, with `grad` in a slice."""
    d = dim % grad.ndim
    return _replaced(b, None, grad, _slice(b, d, b.symbols.size(sizes[d]), start, end, step))


def select_scatter(
    b: LoopBuilder, x: TensorValue, source: TensorValue, dim: int, at: Any
) -> TensorValue:
    """`x` with one slice of size 1 replaced by `source`."""
    d = dim % x.ndim
    return _replaced(b, x, source, _selection(d, selected_index(b, at, x.shape[d])))


def select_backward(
    b: LoopBuilder, grad: TensorValue, sizes: Sequence[Any], dim: int, at: Any
) -> TensorValue:
    """Zeros, with `grad` in one slice of size 1."""
    d = dim % len(sizes)
    position = wrapped_index(b, at, b.symbols.size(sizes[d]))
    return _replaced(b, None, grad, _selection(d, position))


def _overwrite(b: LoopBuilder, source: TensorValue, part: TensorValue) -> None:
    """Write `source` over a part of a buffer that holds the rest."""

    def body(ops: Tracer, index: tuple[Expr, ...]) -> None:
        ops.store(part, index, ops.cast(ops.get(source, index), part.dtype))

    b.scatter(part.shape, body)


def diagonal_scatter(
    b: LoopBuilder,
    x: TensorValue,
    source: TensorValue,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> TensorValue:
    """`x` with a diagonal replaced by `source`."""
    if not isinstance(offset, int):
        raise FallbackToAten
    result = b.copy(x, b.out)
    p, q = dim1 % x.ndim, dim2 % x.ndim
    start = result.strides[q] * offset if offset >= 0 else result.strides[p] * -offset
    rest = [d for d in range(x.ndim) if d not in (p, q)]
    part = TensorValue(
        result.buffer,
        result.dtype,
        result.device,
        source.shape,
        (*(result.strides[d] for d in rest), result.strides[p] + result.strides[q]),
        result.offset + start,
        result.stored,
    )
    _overwrite(b, source, part)
    return result


def _is_injective(sizes: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Return whether all elements of a view have addresses of their own, judging by its static
    sizes."""
    dims = [
        (step.value, size.value)
        for step, size in zip(strides, sizes, strict=True)
        if isinstance(step, Const) and isinstance(size, Const) and size.value > 1
    ]
    span = 1
    for step, size in sorted(dims):
        if step < span:
            return False
        span += (size - 1) * step
    return True


def as_strided_scatter(
    b: LoopBuilder,
    x: TensorValue,
    source: TensorValue,
    size: Sequence[Any],
    stride: Sequence[Any],
    offset: Any = None,
) -> TensorValue:
    """`x` with a strided part replaced by `source`."""
    base: Any = b.node.args[0]
    out = b.exact_spec(b.node.meta["val"])
    if out.strides != b.out.strides or out.strides != x.strides:
        raise FallbackToAten
    if not _is_injective(b.symbols.sizes(size), b.symbols.sizes(stride)):
        raise FallbackToAten  # of overlapping elements, the last one counts
    begin = b.symbols.size(base.meta["val"].storage_offset())
    start = begin if offset is None else b.symbols.size(offset)
    memory = evolve(x, strides=out.strides, offset=ZERO, planes=None)
    part = evolve(
        memory, shape=b.symbols.sizes(size), strides=b.symbols.sizes(stride), offset=start - begin
    )
    if not surely_in_bounds(part, memory, facts_of(b.symbols)):
        raise FallbackToAten  # ATen copies the storage, which may hold more elements
    result = b.copy(x, out)
    _overwrite(b, source, evolve(part, buffer=result.buffer, stored=result.stored))
    return result


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.embedding_dense_backward.default")(embedding_backward)
    table.rule("aten.index_put.default")(index_put)
    table.rule("aten._unsafe_index_put.default")(unsafe_index_put)
    table.rule(
        "aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce", "aten.scatter.value_reduce"
    )(scatter)
    table.rule("aten.scatter_add.default")(scatter_add)
    table.rule("aten.scatter_reduce.two")(scatter_reduce)
    table.rule("aten.index_add.default")(index_add)
    table.rule("aten.index_copy.default")(index_copy)
    table.rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")(index_fill)
    table.rule("aten.slice_scatter.default")(slice_scatter)
    table.rule("aten.slice_backward.default")(slice_backward)
    table.rule("aten.select_scatter.default")(select_scatter)
    table.rule("aten.select_backward.default")(select_backward)
    table.rule("aten.diagonal_scatter.default")(diagonal_scatter)
    table.rule("aten.as_strided_scatter.default")(as_strided_scatter)
