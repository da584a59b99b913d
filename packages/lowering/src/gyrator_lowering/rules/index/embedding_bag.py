"""Sums, means and maxima over bags of embedding rows, and their gradients."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import evolve
from torch.fx import Node

from gyrator_ir.body.nodes import Check, ReduceKind, ScanKind, StoreMode
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Const, Expr, minimum
from gyrator_ir.types import HOST, DType
from gyrator_lowering.builder.program import Body, LoopBuilder
from gyrator_lowering.builder.trace import Tracer, Value, conjunction
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.extern import emit
from gyrator_lowering.rules.index import below
from gyrator_lowering.rules.scatter import Term, scatter_sum, supports_store, to_output
from gyrator_lowering.table import FallbackToAten, TableBuilder
from gyrator_lowering.torch_bridge.graphs import fake_of
from gyrator_lowering.torch_bridge.schema import info_of

SUM, MEAN, MAX = range(3)
"""The numbers of the modes in ATen."""


@frozen
class Bags:
    """Bags of equal length: bag k has the indices from `k * length` on; the last one may be
    shorter."""

    indices: TensorValue
    length: Expr
    full: bool
    padding: Expr

    @property
    def padded(self) -> bool:
        """Whether elements of a bag may be skipped."""
        return not (type(self.padding) is Const and self.padding.value < 0)

    def position(self, bag: Expr, j: Expr) -> Expr:
        """Return the position of the j-th element of a bag among all indices."""
        return bag * self.length + j

    def element(self, ops: Tracer, bag: Expr, j: Expr) -> tuple[Value, Value | None]:
        """Return the row of an element of a bag, and whether it counts, unless it always does."""
        at = self.position(bag, j)
        mask = None if self.full else below(ops, at, self.indices.shape[0])
        row = ops.cast(ops.load(self.indices, (at,), mask), DType.I64)
        if self.padded:
            mask = conjunction(mask, [ops.ne(row, ops.index(self.padding))])
        return row, mask

    def size(self, bag: Expr) -> Expr:
        """Return the number of elements of a bag, including skipped ones."""
        if self.full:
            return self.length
        return minimum(self.length, self.indices.shape[0] - bag * self.length)


def _bags(b: LoopBuilder, indices: TensorValue, last: bool, padding: Any) -> Bags | None:
    """Return the bags if the offsets are `arange(0, len(indices), length)`.

    A two-dimensional input has such offsets. Others are not known statically.
    """
    offsets = b.node.args[2]
    if last or not isinstance(offsets, Node):
        return None
    if offsets.target is not torch.ops.aten.arange.start_step:
        return None
    bounds = fake_of((*offsets.args, 1)[:3])
    if offsets.kwargs.get("step") or not all(isinstance(a, (int, torch.SymInt)) for a in bounds):
        return None
    start, end, length = b.symbols.sizes(bounds)
    if start is not ZERO or end is not indices.shape[0]:
        return None
    if type(length) is Const and length.value < 1:
        return None
    bags = b.symbols.size(offsets.meta["val"].shape[0])
    return Bags(indices, length, bags * length is end, b.symbols.size(padding))


def embedding_bag(
    b: LoopBuilder,
    weight: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    scale_by_frequency: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    factors: TensorValue | None = None,
    last: bool = False,
    padding: Any = -1,
) -> Any:
    """Reduce the rows of each bag, if all bags have the same length; other calls are ATen's.

    So are plain sums on the host, for which ATen has kernels that prefetch rows.
    """
    bags = _bags(b, indices, last, padding)
    host = weight.device.type == HOST
    if bags is None and host and mode == SUM and weight.dtype is DType.BF16 and 1 in b.used_results:
        options = (scale_by_frequency, mode, sparse, factors, last, padding)
        return _with_own_bag_numbers(b, weight, indices, offsets, options)
    if bags is None or (mode == MAX and bags.padded):
        raise FallbackToAten
    if host and mode == SUM and not bags.padded and weight.dtype in (DType.F32, DType.F16):
        raise FallbackToAten
    out, bag_numbers, sizes, chosen = b.outs
    assert out is not None and bag_numbers is not None and sizes is not None and chosen is not None
    used = b.used_results
    count = _count(b, bags, sizes)
    raw = _reduced(b, weight, bags, mode, factors, out)
    result = _divided(b, raw, count, out) if mode == MEAN else to_output(b, raw, out)
    if host and mode == SUM:
        count = _zero
    rows = None
    if 3 in used:
        rows = _chosen(b, weight, bags, chosen) if mode == MAX else b.pointwise(count, chosen)
    bag_of = _bag_numbers(b, bags, bag_numbers) if 1 in used else None
    return result, bag_of, b.pointwise(count, sizes) if 2 in used else None, rows


def _with_own_bag_numbers(
    b: LoopBuilder,
    weight: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    options: tuple[Any, ...],
) -> Any:
    """Call ATen for all results but the bag number of each index.

    ATen's kernel for `bfloat16` sums leaves these empty, contrary to its meta function.
    """
    reason = "offsets are known at run time only"
    info, fakes = info_of(b.node.target), tuple(b.node.meta["val"])
    used = b.used_results - {1}
    results = emit(b, info, (weight, indices, offsets, *options), {}, fakes, used, reason)
    return results[0], _bag_numbers_from_offsets(b, indices, offsets), *results[2:]


def _zero(ops: Tracer, _: Any) -> Value:
    return ops.const(0, DType.I64)


def _count(b: LoopBuilder, bags: Bags, sizes: Spec) -> Body:
    """Return the number of elements of each bag that count."""
    if not bags.padded:
        return lambda ops, index: ops.index(bags.size(index[0]))
    counts = b.buffer(evolve(sizes, dtype=DType.I64))

    def term(ops: Tracer, index: tuple[Expr, ...], inner: tuple[Expr, ...]) -> Value:
        _, mask = bags.element(ops, index[0], inner[0])
        assert mask is not None
        return ops.cast(mask, DType.I64)

    shape = sizes.shape
    b.reduction(ReduceKind.SUM, term, shape, (bags.length,), [counts], DType.I64)
    return lambda ops, index: ops.load(counts, index)


def _reduced(
    b: LoopBuilder,
    weight: TensorValue,
    bags: Bags,
    mode: int,
    factors: TensorValue | None,
    out: Spec,
) -> TensorValue:
    """Return the sums or maxima of the rows of each bag, in the accumulator dtype."""
    dtype = out.dtype.compute
    raw = b.buffer(evolve(out, dtype=dtype))

    def term(ops: Tracer, index: tuple[Expr, ...], inner: tuple[Expr, ...]) -> Value:
        if mode == MAX:
            return _candidate(ops, weight, bags, index, inner[0])
        row, mask = bags.element(ops, index[0], inner[0])
        value = ops.cast(_read(ops, weight, row, index[1], mask), dtype)
        if factors is None:
            return value
        factor = ops.load(factors, (bags.position(index[0], inner[0]),), mask)
        return value * ops.cast(factor, dtype)

    kind = ReduceKind.MAX if mode == MAX else ReduceKind.SUM
    b.reduction(kind, term, out.shape, (bags.length,), [raw], dtype)
    return raw


def _read(ops: Tracer, weight: TensorValue, row: Value, column: Expr, mask: Value | None) -> Value:
    at = ops.bind(row, weight.shape[0], check=Check.RUNTIME, mask=mask)
    return ops.load(weight, (at, column), mask)


def _candidate(
    ops: Tracer, weight: TensorValue, bags: Bags, index: Sequence[Expr], j: Expr
) -> Value:
    """Return an element as eager compares it: NaN counts only in the first row of a bag."""
    row, mask = bags.element(ops, index[0], j)
    value = ops.wide(_read(ops, weight, row, index[1], mask))
    out = ops.isnan(value) & ops.gt(ops.index(j), 0)
    if mask is not None:
        out = out | ~mask
    return ops.where(out, float("-inf"), value)


def _chosen(b: LoopBuilder, weight: TensorValue, bags: Bags, chosen: Spec) -> TensorValue:
    """Return the row that each maximum comes from."""
    at = b.buffer(evolve(chosen, dtype=DType.I64))
    b.reduction(
        ReduceKind.ARGMAX,
        lambda ops, index, inner: _candidate(ops, weight, bags, index, inner[0]),
        chosen.shape,
        (bags.length,),
        [at],
        weight.dtype.compute,
    )

    def body(ops: Tracer, index: tuple[Expr, ...]) -> Value:
        j = ops.bind(ops.load(at, index), bags.length, check=False)
        return ops.load(bags.indices, (bags.position(index[0], j),))

    return b.pointwise(body, chosen)


def _divided(b: LoopBuilder, total: TensorValue, count: Body, out: Spec) -> TensorValue:
    """Return means; 0 for an empty bag."""

    def body(ops: Tracer, index: tuple[Expr, ...]) -> Value:
        size = ops.maximum(count(ops, index[:1]), 1)
        return ops.load(total, index) / ops.cast(size, total.dtype)

    return b.pointwise(body, out)


def _bag_numbers(b: LoopBuilder, bags: Bags, out: Spec) -> TensorValue:
    """Return the bag number of each index; empty if eager's is."""
    return b.pointwise(lambda ops, index: ops.index(index[0] // bags.length), out)


# Gradients ------------------------------------------------------------------------------------


def backward(
    b: LoopBuilder,
    grad: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    bag_of: TensorValue,
    sizes: TensorValue,
    chosen: TensorValue,
    rows: Any,
    scale_by_frequency: bool,
    mode: int,
    sparse: bool,
    factors: TensorValue | None,
    padding: Any = -1,
) -> TensorValue:
    """Add the gradient of each bag to the rows that it was computed from."""
    if sparse or scale_by_frequency:
        raise FallbackToAten
    rows_of_weight, dtype = b.out.shape[0], b.out.dtype.compute

    def from_maximum(ops: Tracer, index: tuple[Expr, ...]) -> Iterator[Term]:
        mask = ops.ne(ops.load(sizes, index[:1]), 0)
        row = ops.bind(ops.load(chosen, index, mask), rows_of_weight, mask=mask)
        yield (row, index[1]), ops.cast(ops.load(grad, index), dtype), mask

    if mode == MAX:
        return scatter_sum(b, grad.shape, from_maximum)
    if not supports_store(b, b.out.device.type, dtype, StoreMode.ADD):
        raise FallbackToAten
    skip = b.symbols.size(padding)
    bag_numbers = _bag_numbers_from_offsets(b, indices, offsets)
    reads_all = _reads_all(b, grad, mode, skip)

    def from_sum(ops: Tracer, index: tuple[Expr, ...]) -> Iterator[Term]:
        at = ops.cast(ops.load(indices, index[:1]), DType.I64)
        mask = None if skip is Const(-1) else ops.ne(at, ops.index(skip))
        bag, mask = _bag(ops, bag_numbers, index[0], grad.shape[0], mask, reads_all)
        row = ops.bind(at, rows_of_weight, mask=mask)
        value = ops.cast(ops.load(grad, (bag, index[1]), mask), dtype)
        if mode == MEAN:
            size = ops.maximum(ops.cast(ops.load(sizes, (bag,), mask), DType.I64), 1)
            value = value / ops.cast(size, dtype)
        if factors is not None:
            value = value * ops.cast(ops.load(factors, index[:1]), dtype)
        yield (row, index[1]), value, mask

    return scatter_sum(b, (indices.shape[0], grad.shape[1]), from_sum)


def _bag_numbers_from_offsets(
    b: LoopBuilder, indices: TensorValue, offsets: TensorValue
) -> TensorValue:
    """Return the bag number of each index: the number of bags that start up to it, minus one.

    The forward op returns this too, but leaves it empty if it does not need it, whatever the shape
    of its fake result. The last offset may be the number of indices, or, if it is the
    end of the last bag, less: the indices after it get the number of bags.
    """
    if not supports_store(b, offsets.device.type, DType.I64, StoreMode.ADD):
        raise FallbackToAten
    starts = b.temp((indices.shape[0] + 1,), DType.I64, offsets)
    b.pointwise_into(starts, _zero)

    def mark(ops: Tracer, index: tuple[Expr, ...]) -> None:
        at = ops.bind(ops.load(offsets, index), starts.shape[0])
        ops.store(starts, (at,), ops.const(1, DType.I64), StoreMode.ADD)

    b.scatter(offsets.shape, mark)
    running = b.temp(starts.shape, DType.I64, offsets)
    b.scan(
        ScanKind.SUM,
        lambda ops, index: ops.load(starts, index),
        starts.shape,
        0,
        [running],
        DType.I64,
    )
    return b.pointwise(
        lambda ops, index: ops.load(running, index) - 1,
        Spec(DType.I64, offsets.device, indices.shape, (ONE,)),
    )


def _reads_all(b: LoopBuilder, grad: TensorValue, mode: int, padding: Expr) -> bool:
    """Return whether the last bag has all remaining indices, even if the last offset, that of its
    end, is below their number.

    So ATen's kernels have it, except for plain sums on the host, for which they stop at the last
    offset. Where they stop, ATen's gradients read behind the gradient of the last bag.
    """
    plain = type(padding) is Const and padding.value < 0
    narrow = grad.dtype in (DType.F32, DType.F16, DType.BF16)
    return not (b.out.device.type == HOST and mode == SUM and plain and narrow)


def _bag(
    ops: Tracer,
    bag_numbers: TensorValue,
    position: Expr,
    bags: Expr,
    mask: Value | None,
    reads_all: bool,
) -> tuple[Expr, Value | None]:
    """Return the bag of the index at a position, and whether the index counts, unless it always
    does."""
    bag = ops.load(bag_numbers, (position,))
    if reads_all:
        bag = ops.minimum(bag, ops.index(bags - 1))
    else:
        mask = conjunction(mask, [ops.lt(bag, ops.index(bags))])
    return ops.bind(bag, bags, mask=mask), mask


def factors_backward(
    b: LoopBuilder,
    grad: TensorValue,
    weight: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    bag_of: TensorValue,
    mode: int,
    padding: Any = -1,
) -> TensorValue:
    """The gradient of the factor of each index: its bag's gradient times its row."""
    out = b.out
    dtype = out.dtype.compute
    bag_numbers = _bag_numbers_from_offsets(b, indices, offsets)
    skip = b.symbols.size(padding)
    reads_all = _reads_all(b, grad, mode, skip)
    raw = b.buffer(evolve(out, dtype=dtype))

    def term(ops: Tracer, index: tuple[Expr, ...], inner: tuple[Expr, ...]) -> Value:
        at = ops.cast(ops.load(indices, index), DType.I64)
        mask = None if skip is Const(-1) else ops.ne(at, ops.index(skip))
        bag, mask = _bag(ops, bag_numbers, index[0], grad.shape[0], mask, reads_all)
        row = ops.bind(at, weight.shape[0], mask=mask)
        bag_gradient = ops.cast(ops.load(grad, (bag, inner[0]), mask), dtype)
        return bag_gradient * ops.cast(ops.load(weight, (row, inner[0]), mask), dtype)

    b.reduction(ReduceKind.SUM, term, out.shape, (grad.shape[1],), [raw], dtype)
    return to_output(b, raw, out)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")(
        embedding_bag
    )
    table.rule("aten._embedding_bag_backward.default")(backward)
    table.rule("aten._embedding_bag_per_sample_weights_backward.default")(factors_backward)
