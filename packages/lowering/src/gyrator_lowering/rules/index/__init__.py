"""Indexed reads: embedding, gather, index and select; and concatenation of tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from attrs import evolve
from torch.fx import Node

from gyrator_ir.body.nodes import Check
from gyrator_ir.expr import ONE, ZERO, Const, Expr, contiguous_strides, maximum, product_of, sum_of
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder, flat_index, unravel
from gyrator_lowering.builder.slices import wrapped_index
from gyrator_lowering.builder.trace import Tracer, Value, conjunction
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.extern import MASKS, call, is_library_work
from gyrator_lowering.table import FallbackToAten, TableBuilder
from gyrator_lowering.torch_bridge.facts import facts_of
from gyrator_lowering.torch_bridge.schema import info_of


def embedding(
    b: LoopBuilder, weight: TensorValue, indices: TensorValue, *_: Any, **__: Any
) -> TensorValue:
    """Rows of `weight`; an index out of range raises eager's IndexError."""
    if reads_no_index(b, (indices,)):
        raise FallbackToAten

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        row = ops.bind(ops.load(indices, index[:-1]), weight.shape[0])
        return ops.load(weight, (row, index[-1]))

    return b.pointwise(body)


def index_select(b: LoopBuilder, x: TensorValue, dim: int, indices: TensorValue) -> TensorValue:
    """Slices of `x` at the indices in a vector."""
    if x.ndim == 0 or reads_no_index(b, (indices,)):
        raise FallbackToAten
    d = dim % x.ndim
    is_vector = indices.ndim > 0
    # Eager has a separate kernel for the second dimension, with another exception.
    check = Check.RUNTIME if d == 1 else Check.INDEX

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        at = ops.load(indices, (index[d],) if is_vector else ())
        row = ops.bind(at, x.shape[d], check=check)
        return ops.load(x, (*index[:d], row, *index[d + 1 :]))

    return b.pointwise(body)


def gather(b: LoopBuilder, x: TensorValue, dim: int, indices: TensorValue, **_: Any) -> TensorValue:
    """`x[..., indices[i], ...]` along one dimension. An empty `indices` may have any shape."""
    if x.ndim == 0 or indices.ndim != x.ndim:
        raise FallbackToAten
    d = dim % x.ndim

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        row = ops.bind(ops.load(indices, index), x.shape[d], check=Check.RUNTIME)
        return ops.load(x, (*index[:d], row, *index[d + 1 :]))

    return b.pointwise(body)


def indexed(
    ops: Tracer,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    index: Sequence[Expr],
    check: bool,
) -> tuple[Expr, ...]:
    """Return the index into `x` for an index of `x[indices]`, as in NumPy's advanced indexing."""
    rank = max(p.ndim for p in indices if p is not None)
    dims = [d for d, p in enumerate(indices) if p is not None]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    start = dims[0] if adjacent else 0
    block = index[start : start + rank]
    rest = iter((*index[:start], *index[start + rank :]))
    result: list[Expr] = []
    for d in range(x.ndim):
        if d in dims:
            tensor = indices[d]
            assert tensor is not None
            at = ops.get(tensor, block)
            result.append(ops.bind(at, x.shape[d], wrap=True, check=check))
        else:
            result.append(next(rest))
    return tuple(result)


def with_masks(indices: Sequence[TensorValue | None]) -> bool:
    """Return whether the indices contain a boolean or byte mask, whose size depends on its
    values."""
    return any(p is not None and p.dtype in MASKS for p in indices)


def reads_no_index(b: LoopBuilder, indices: Sequence[TensorValue | None]) -> bool:
    """Return whether kernels would read no index because the result is empty; ATen may refuse
    it."""
    return ZERO in b.out.shape and not any(ZERO in p.shape for p in indices if p is not None)


def index_tensor(
    b: LoopBuilder, x: TensorValue, indices: Sequence[TensorValue | None], check: bool = True
) -> TensorValue:
    """`x[indices]`; without `check`, indices are known to be in bounds."""
    if with_masks(indices) or all(p is None for p in indices):
        raise FallbackToAten
    if check and reads_no_index(b, indices):
        raise FallbackToAten
    return b.pointwise(lambda ops, index: ops.load(x, indexed(ops, x, indices, index, check)))


def below(ops: Tracer, index: Expr, limit: Expr) -> Value:
    """Return whether an index is less than a size."""
    return ops.lt(ops.index(index), ops.index(limit))


def cat(b: LoopBuilder, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Tensors concatenated along a dimension."""
    out = b.out
    d = dim % max(1, len(out.shape))
    parts = [t for t in tensors if not (t.ndim == 1 and len(out.shape) != 1)]
    parts = [t for t in parts if t.shape[d] is not ZERO]
    if not parts:
        return b.copy(tensors[0], out)
    ends: list[Expr] = [ZERO]
    for part in parts:
        ends.append(sum_of([ends[-1], part.shape[d]]))

    if len(parts) > WRITTEN:
        reason = "a kernel for each of so many tensors takes longer"
        joined: TensorValue = call(b, [tensors, dim], {}, reason)
        return joined
    if len(parts) > SELECTED and not _shares_launches(b, parts, out):
        return _written_in_parts(b, parts, ends, d, out)
    if _writes_runs(parts, d, out) and _is_left_in_memory(b.node):
        result = b.buffer(out)
        sections = [
            _section(result, part, end, d) for part, end in zip(parts, ends[:-1], strict=True)
        ]
        b.many_into(sections, lambda ops, index: tuple(ops.load(p, index) for p in parts))
        return result

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        return joined_at(ops, parts, ends, d, index, out.dtype)

    return b.pointwise(body, out)


SELECTED = 8
"""Up to this many tensors are concatenated by selecting one at each index of the result."""
RUN = 16
"""Minimum number of adjacent elements of each part where one loop writes all parts."""
WRITTEN = 64
"""Up to this many tensors are each copied by a kernel of their own, which may be the one that
computes them."""


def _shares_launches(b: LoopBuilder, parts: Sequence[TensorValue], out: Spec) -> bool:
    """Return whether the kernels that compute single elements, such as the norms of many tensors,
    can share a launch: they must be identical, and store to different tensors."""
    kinds = b.targets[out.device.type].heuristics.together_kinds
    return kinds > 0 and all(e is ONE for part in parts for e in part.shape)


def _writes_runs(parts: Sequence[TensorValue], d: int, out: Spec) -> bool:
    """Return whether one loop can write all parts: they are alike, and each is stored in runs of
    adjacent elements, which stores of vectors and of neighbouring threads need."""
    first, *others = parts
    if not others or any(p.shape != first.shape or p.dtype != out.dtype for p in parts):
        return False
    run = first.shape[d] * out.strides[d]
    return type(run) is not Const or run.value >= RUN


def _is_left_in_memory(node: Node) -> bool:
    """Return whether a result is stored whichever loop computes it: its views are results of the
    graph, or operands of products, convolutions and attention."""
    return all(
        user.op == "output"
        or (
            isinstance(user.target, torch._ops.OpOverload)
            and (
                is_library_work(info_of(user.target).name)
                or (info_of(user.target).is_view and _is_left_in_memory(user))
            )
        )
        for user in node.users
    )


def _section(result: TensorValue, part: TensorValue, start: Expr, d: int) -> TensorValue:
    """Return the slice of a concatenation that holds a part."""
    return evolve(result, shape=part.shape, offset=result.offset + start * result.strides[d])


def _written_in_parts(
    b: LoopBuilder, parts: Sequence[TensorValue], ends: Sequence[Expr], d: int, out: Spec
) -> TensorValue:
    """Write each part to its slice: the first as a loop, the others over existing memory."""
    result = b.buffer(out)
    for k, part in enumerate(parts):
        section = _section(result, part, ends[k], d)
        if k == 0:
            b.pointwise_into(section, lambda ops, index: ops.load(parts[0], index))
            continue

        def body(
            ops: Tracer,
            index: tuple[Expr, ...],
            part: TensorValue = part,
            section: TensorValue = section,
        ) -> None:
            ops.store(section, index, ops.load(part, index))

        b.scatter(part.shape, body)
    return result


def joined_at(
    ops: Tracer,
    parts: Sequence[TensorValue],
    ends: Sequence[Expr],
    d: int,
    index: Sequence[Expr],
    dtype: DType,
) -> Value:
    """Return the element of the concatenated tensors at an index; each part is read under its
    mask."""
    at = index[d]
    result: Value | None = None
    for k in range(len(parts) - 1, -1, -1):
        offset = ZERO if parts[k].shape[d] is ONE else at - ends[k]
        inside = (*index[:d], offset, *index[d + 1 :])
        if len(parts) == 1:
            return ops.cast(ops.load(parts[0], inside), dtype)
        mask = below(ops, at, ends[k + 1]) if k < len(parts) - 1 else None
        if k > 0:
            above = ops.ge(ops.index(at), ops.index(ends[k]))
            mask = above if mask is None else above & mask
        value = ops.cast(ops.load(parts[k], inside, mask), dtype)
        first = result is None
        result = value if first else ops.where(below(ops, at, ends[k + 1]), value, result)
    assert result is not None
    return result


def inside(
    ops: Tracer, index: Sequence[Expr], shape: Sequence[Expr], dims: Sequence[int]
) -> Value | None:
    """Return whether an index is in `shape` in each of `dims`; None if there are none to check."""
    return conjunction(
        None, (ops.ge(ops.index(index[d]), 0) & below(ops, index[d], shape[d]) for d in dims)
    )


def constant_pad(b: LoopBuilder, x: TensorValue, pad: Sequence[Any], value: Any = 0) -> TensorValue:
    """`x` padded with one value; negative widths crop."""
    before: list[Expr] = [ZERO] * x.ndim
    dims = []
    for k in range(len(pad) // 2):
        d = x.ndim - 1 - k
        before[d] = b.symbols.size(pad[2 * k])
        if pad[2 * k] != 0 or pad[2 * k + 1] != 0:
            dims.append(d)
    out = b.out

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        at = [i - low for i, low in zip(index, before, strict=True)]
        return ops.masked_load(x, at, inside(ops, at, x.shape, dims), value)

    return b.pointwise(body, out)


def slice_range(b: LoopBuilder, size: Expr, start: Any, end: Any) -> tuple[Expr, Expr]:
    """Return a slice's bounds: its start in [0, size], and its exclusive end."""
    low = ZERO if start is None else _bound(b, size, start)
    high = size if end is None else _bound(b, size, end)
    return low, high


def _bound(b: LoopBuilder, size: Expr, bound: Any) -> Expr:
    """Return a bound that may be counted from the end, and may be out of range."""
    position = wrapped_index(b, bound, size)
    if type(position) is Const and type(size) is Const:
        return Const(min(max(position.value, 0), size.value))
    if position is ZERO or position is size:
        return position
    facts = facts_of(b.symbols)
    return position if facts.known_nonnegative(position) else maximum(ZERO, position)


def flip(b: LoopBuilder, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    """`x` reversed along the given dimensions."""
    reversed_dims = {d % x.ndim for d in dims} if x.ndim else set()

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        at = [x.shape[d] - 1 - i if d in reversed_dims else i for d, i in enumerate(index)]
        return ops.load(x, at)

    return b.pointwise(body)


def repeat(b: LoopBuilder, x: TensorValue, times: Sequence[Any]) -> TensorValue:
    """`x` tiled along each dimension."""
    lead = len(times) - x.ndim
    if ZERO in x.shape:
        return b.pointwise(lambda ops, _: ops.const(0, x.dtype))

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        at = [i % s if s is not ONE else ZERO for i, s in zip(index[lead:], x.shape, strict=True)]
        return ops.load(x, at)

    return b.pointwise(body)


def roll(
    b: LoopBuilder, x: TensorValue, shifts: Sequence[Any], dims: Sequence[int] = ()
) -> TensorValue:
    """`x` shifted cyclically along the given dimensions."""
    if x.ndim == 0 or ZERO in x.shape:
        return b.copy(x, b.out)
    if not dims:
        return _rolled_flat(b, x, b.symbols.size(shifts[0] if shifts else 0))
    shift_of: dict[int, Expr] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        d = dim % x.ndim
        shift_of[d] = shift_of.get(d, ZERO) + b.symbols.size(shift)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        at = list(index)
        for d, shift in shift_of.items():
            at[d] = (index[d] - shift) % x.shape[d]
        return ops.load(x, at)

    return b.pointwise(body)


def _rolled_flat(b: LoopBuilder, x: TensorValue, shift: Expr) -> TensorValue:
    """Roll the elements in row-major order."""
    steps = contiguous_strides(x.shape)
    total = product_of(x.shape)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        flat = (flat_index(index, steps) - shift) % total
        return ops.load(x, unravel(flat, x.shape))

    return b.pointwise(body)


def triangle(upper: bool) -> Any:
    """Return the rule of `triu` or `tril`."""

    def rule(b: LoopBuilder, x: TensorValue, diagonal: Any = 0) -> TensorValue:
        shift = b.symbols.size(diagonal)

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            row, column = ops.index(index[-2] + shift), ops.index(index[-1])
            mask = ops.le(row, column) if upper else ops.ge(row, column)
            return ops.load(x, index, mask)

        return b.pointwise(body)

    return rule


def take(b: LoopBuilder, x: TensorValue, indices: TensorValue) -> TensorValue:
    """Elements of `x` at row-major linear indices."""
    if ZERO in x.shape:
        raise FallbackToAten
    total = product_of(x.shape)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        flat = ops.bind(ops.load(indices, index), total, wrap=True)
        return ops.load(x, unravel(flat, x.shape))

    return b.pointwise(body)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.embedding.default")(embedding)
    table.rule("aten.index_select.default")(index_select)
    table.rule("aten.gather.default")(gather)
    table.rule("aten._unsafe_index.Tensor")(
        lambda b, x, indices: index_tensor(b, x, indices, check=False)
    )
    table.rule("aten.cat.default")(cat)
    table.rule("aten.constant_pad_nd.default")(constant_pad)
    table.rule("aten.flip.default")(flip)
    table.rule("aten.repeat.default")(repeat)
    table.rule("aten.roll.default")(roll)
    table.rule("aten.triu.default")(triangle(upper=True))
    table.rule("aten.tril.default")(triangle(upper=False))
    table.rule("aten.take.default")(take)
