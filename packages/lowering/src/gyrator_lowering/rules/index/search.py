"""Places of values among sorted ones."""

from typing import Any

from gyrator_ir.body.nodes import Check
from gyrator_ir.expr import Const
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import Arg, computed_in, operand
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.table import FallbackToAten, TableBuilder

MOST = 1 << 20
"""Up to this many sorted values are searched in a kernel."""


def _found(
    b: LoopBuilder,
    ordered: TensorValue,
    values: Arg,
    right: bool,
    sorter: TensorValue | None = None,
) -> TensorValue:
    """Return how many of `ordered`, along its last dimension, lie before each of `values`.

    It compares what eager mode's bisection compares, so that it gives the same places among values
    that are not sorted, NaN between them. All values take the steps of the longest search. `sorter`
    gives the positions of the values in order.
    """
    size = ordered.shape[-1] if ordered.ndim else None
    if not isinstance(size, Const) or not 0 < size.value <= MOST or ordered.dtype is DType.BOOL:
        raise FallbackToAten
    count, row = size.value, ordered.ndim - 1
    if isinstance(values, TensorValue) and row and row != values.ndim - 1:
        raise FallbackToAten
    dtype = computed_in([ordered, values]).compute

    def body(ops: Tracer, index: Index) -> Value:
        value = operand(ops, values, index, dtype)
        place, end = ops.const(0, DType.I64), ops.const(count, DType.I64)
        one = ops.const(1, DType.I64)
        for _ in range(count.bit_length()):
            half = place + ops.shr(end - place, one)
            at = ops.bind(ops.minimum(half, count - 1), size, check=False)
            if sorter is not None:
                at = ops.bind(ops.load(sorter, (*index[:row], at)), size, check=Check.RUNTIME)
            middle = ops.cast(ops.load(ordered, (*index[:row], at)), dtype)
            behind = ops.gt(middle, value) if right else ops.ge(middle, value)
            # Where nothing is left to search, half is the end.
            place = ops.where(behind, place, ops.minimum(half + 1, end))
            end = ops.where(behind, half, end)
        return place

    return b.pointwise(body)


def searchsorted(
    b: LoopBuilder,
    ordered: TensorValue,
    values: Arg,
    *,
    right: bool = False,
    side: str | None = None,
    sorter: TensorValue | None = None,
    **_: Any,
) -> TensorValue:
    """Places at which values keep a sequence sorted."""
    return _found(b, ordered, values, right or side == "right", sorter)


def bucketize(
    b: LoopBuilder, values: Arg, ordered: TensorValue, *, right: bool = False, **_: Any
) -> TensorValue:
    """Numbers of the intervals between boundaries that values lie in."""
    return _found(b, ordered, values, right)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")(searchsorted)
    table.rule("aten.bucketize.Tensor", "aten.bucketize.Scalar")(bucketize)
