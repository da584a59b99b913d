"""Products of scaled, quantised or grouped matrices: library calls, or sums of products."""

from collections.abc import Sequence
from typing import Any

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ONE, ZERO, Expr
from gyrator_ir.types import BYTE_FLOATS, DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.matmul import accumulated, library_or_loops, product
from gyrator_lowering.table import FallbackToAten, TableBuilder

_BY_TENSOR, _BY_ROW = 0, 1
"""Values of `torch.nn.functional.ScalingType`."""


def scaled_mm(
    b: LoopBuilder,
    x: TensorValue,
    y: TensorValue,
    scale_x: TensorValue,
    scale_y: TensorValue,
    bias: TensorValue | None = None,
    scale_result: TensorValue | None = None,
    *_: Any,
    **__: Any,
) -> TensorValue:
    """`scale_x * scale_y * (x @ y) + bias`, with a scale for all or for each row or column."""
    rows, columns = x.shape[0], y.shape[1]
    is_supported = _scales(scale_x, (rows, ONE)) and _scales(scale_y, (ONE, columns))
    if not is_supported or scale_result is not None or b.out.dtype in BYTE_FLOATS:
        raise FallbackToAten

    def after(ops: Tracer, index: Index, total: Value) -> Value:
        for scale in (scale_x, scale_y):
            total = total * ops.cast(_scale(ops, scale, index), total.dtype)
        return total if bias is None else total + ops.cast(ops.get(bias, index), total.dtype)

    return product(b, x, y, after)


def _scales(scale: TensorValue, each: tuple[Expr, Expr]) -> bool:
    """Return whether there is one scale for all, or one for `each` row or column."""
    return scale.dtype is DType.F32 and (set(scale.shape) <= {ONE} or scale.shape == each)


def _scale(ops: Tracer, scale: TensorValue, index: Index) -> Value:
    if set(scale.shape) <= {ONE}:
        return ops.load(scale, (ZERO,) * scale.ndim)
    return ops.get(scale, index)


def scaled_mm_by_recipes(
    b: LoopBuilder,
    x: TensorValue,
    y: TensorValue,
    scales_x: Sequence[TensorValue],
    recipes_x: Sequence[int],
    swizzles_x: Sequence[int],
    scales_y: Sequence[TensorValue],
    recipes_y: Sequence[int],
    swizzles_y: Sequence[int],
    bias: TensorValue | None = None,
    _dtype: Any = None,
    contracted: Sequence[int] = (),
    *_: Any,
    **__: Any,
) -> TensorValue:
    """Like `scaled_mm`, with recipes that say what the scales apply to."""
    if {*recipes_x, *recipes_y} - {_BY_TENSOR, _BY_ROW} or any((*swizzles_x, *swizzles_y)):
        raise FallbackToAten
    if len(scales_x) != 1 or len(scales_y) != 1 or contracted:
        raise FallbackToAten
    return scaled_mm(b, x, y, scales_x[0], scales_y[0], bias)


def int8_mm(b: LoopBuilder, x: TensorValue, y: TensorValue, scales: TensorValue) -> TensorValue:
    """`(x @ y.T) * scales`, of a float matrix and rows of bytes with a scale each."""

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        row, column = index
        return ops.load(x, (row, *rindex)), ops.load(y, (column, *rindex))

    def after(ops: Tracer, index: Index, total: Value) -> Value:
        return total * ops.cast(ops.load(scales, index[1:]), total.dtype)

    return accumulated(b, terms, x.shape[1:], after)


def grouped_mm(
    b: LoopBuilder,
    x: TensorValue,
    y: TensorValue,
    ends: TensorValue | None = None,
    bias: TensorValue | None = None,
    *_: Any,
    **__: Any,
) -> TensorValue:
    """A product for each group: of two stacks of matrices, or split at the ends of the groups.

    With one stack, rows of `x` or columns of `y` belong to groups, and everything after the last
    group's end is 0. With none, the indices that are summed over belong to groups.
    """
    if bias is not None:
        raise FallbackToAten
    if ends is None:
        return product(b, x, y)
    if x.ndim == y.ndim == 2:
        return _sums_of_groups(b, x, y, ends)
    dim = 0 if x.ndim == 2 else 1
    groups = _groups_of(b, b.out.shape[dim], ends)

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        row, column = index
        number = ops.load(groups, index[dim : dim + 1])
        inside = ops.lt(number, ops.index(ends.shape[0]))
        group = ops.bind(number, ends.shape[0], check=False, mask=inside)
        left, right = (row, *rindex), (*rindex, column)
        if dim == 0:
            right = (group, *right)
        else:
            left = (group, *left)
        return ops.load(x, left, inside), ops.load(y, right, inside)

    return accumulated(b, terms, x.shape[-1:])


def _groups_of(b: LoopBuilder, size: Expr, ends: TensorValue) -> TensorValue:
    """Return the group of each index: the number of groups that end at it or before."""
    groups = b.temp((size,), DType.I64, ends)

    def ended(ops: Tracer, index: Index, rindex: Index) -> Value:
        end = ops.cast(ops.load(ends, rindex), DType.I64)
        return ops.cast(ops.le(end, ops.index(index[0])), DType.I64)

    b.reduction(ReduceKind.SUM, ended, (size,), ends.shape, [groups], DType.I64)
    return groups


def _sums_of_groups(
    b: LoopBuilder, x: TensorValue, y: TensorValue, ends: TensorValue
) -> TensorValue:
    groups = _groups_of(b, x.shape[1], ends)

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        group, row, column = index
        inside = ops.eq(ops.load(groups, rindex), ops.index(group))
        return ops.load(x, (row, *rindex), inside), ops.load(y, (*rindex, column), inside)

    return accumulated(b, terms, x.shape[1:])


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten._scaled_mm.default")(library_or_loops(scaled_mm))
    table.rule("aten._scaled_mm_v2.default")(library_or_loops(scaled_mm_by_recipes))
    table.rule("aten._weight_int8pack_mm.default")(library_or_loops(int8_mm))
    table.rule("aten._grouped_mm.default")(library_or_loops(grouped_mm))
