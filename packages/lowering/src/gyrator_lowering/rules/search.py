"""Places of values among sorted ones."""

from typing import Any

from gyrator_ir.expr import Const
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.table import FallbackToAten, TableBuilder

MOST = 1 << 20
"""Up to this many sorted values are searched in a kernel."""


def _found(b: LoopBuilder, ordered: TensorValue, values: TensorValue, right: bool) -> TensorValue:
    """Return how many of `ordered`, along its last dimension, lie before each of `values`.

    The search halves a constant length, so that all values take the same steps. As in eager, NaN
    lies behind everything.
    """
    size = ordered.shape[-1] if ordered.ndim else None
    if not isinstance(size, Const) or not 0 < size.value <= MOST:
        raise FallbackToAten
    if ordered.dtype is not values.dtype or ordered.dtype is DType.BOOL:
        raise FallbackToAten
    count = size.value
    row = ordered.ndim - 1
    if row and row != values.ndim - 1:
        raise FallbackToAten

    def body(ops: Tracer, index: Index) -> Value:
        value = ops.wide(ops.load(values, index))
        place = ops.const(0, DType.I64)
        step = 1 << (count.bit_length() - 1)
        while step:
            end = place + step
            inside = ops.le(end, count)
            at = ops.bind(ops.minimum(end - 1, count - 1), size, check=False)
            middle = ops.wide(ops.load(ordered, (*index[:row], at)))
            behind = ops.gt(middle, value) if right else ops.ge(middle, value)
            place = ops.where(inside & ~behind, end, place)
            step >>= 1
        return place

    return b.pointwise(body)


def searchsorted(
    b: LoopBuilder,
    ordered: TensorValue,
    values: Any,
    *,
    right: bool = False,
    side: str | None = None,
    sorter: TensorValue | None = None,
    **_: Any,
) -> TensorValue:
    """Places at which values keep a sequence sorted."""
    if sorter is not None or not isinstance(values, TensorValue):
        raise FallbackToAten
    return _found(b, ordered, values, right or side == "right")


def bucketize(
    b: LoopBuilder, values: Any, ordered: TensorValue, *, right: bool = False, **_: Any
) -> TensorValue:
    """Numbers of the intervals between boundaries that values lie in."""
    if not isinstance(values, TensorValue):
        raise FallbackToAten
    return _found(b, ordered, values, right)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.searchsorted.Tensor")(searchsorted)
    table.rule("aten.bucketize.Tensor")(bucketize)
