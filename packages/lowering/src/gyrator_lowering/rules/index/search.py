"""Binary search for the positions of values in sorted sequences."""

from typing import Any

from gyrator_ir.body.nodes import Check
from gyrator_ir.expr import Const
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import Arg, operand, promoted_dtype
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.table import FallbackToAten, TableBuilder

MOST = 1 << 20
"""Up to this many sorted values are searched in a kernel."""


def _search(
    b: LoopBuilder,
    ordered: TensorValue,
    values: Arg,
    right: bool,
    sorter: TensorValue | None = None,
) -> TensorValue:
    """Return how many of `ordered`, along its last dimension, precede each of `values`.

    It makes the same comparisons as eager's bisection, so that it finds the same positions in
    sequences that are not sorted or contain NaN. All values take the steps of the longest search.
    `sorter` gives the positions of the sequence's values in order.
    """
    size = ordered.shape[-1] if ordered.ndim else None
    if not isinstance(size, Const) or not 0 < size.value <= MOST or ordered.dtype is DType.BOOL:
        raise FallbackToAten
    count, row = size.value, ordered.ndim - 1
    if isinstance(values, TensorValue) and row and row != values.ndim - 1:
        raise FallbackToAten
    promoted = promoted_dtype([ordered, values])
    dtype = promoted.compute

    def body(ops: Tracer, index: Index) -> Value:
        value = ops.cast(operand(ops, values, index, promoted), dtype)
        position, end = ops.const(0, DType.I64), ops.const(count, DType.I64)
        single = ops.const(1, DType.I64)
        for _ in range(count.bit_length()):
            half = position + ops.shr(end - position, single)
            at = ops.bind(ops.minimum(half, count - 1), size, check=False)
            if sorter is not None:
                at = ops.bind(ops.load(sorter, (*index[:row], at)), size, check=Check.RUNTIME)
            middle = ops.cast(ops.load(ordered, (*index[:row], at)), dtype)
            behind = ops.gt(middle, value) if right else ops.ge(middle, value)
            # If nothing is left to search, half is the end.
            position = ops.where(behind, position, ops.minimum(half + 1, end))
            end = ops.where(behind, half, end)
        return position

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
    """The positions at which inserting values keeps a sequence sorted."""
    return _search(b, ordered, values, right or side == "right", sorter)


def bucketize(
    b: LoopBuilder, values: Arg, ordered: TensorValue, *, right: bool = False, **_: Any
) -> TensorValue:
    """The number of the interval between boundaries that each value falls into."""
    return _search(b, ordered, values, right)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")(searchsorted)
    table.rule("aten.bucketize.Tensor", "aten.bucketize.Scalar")(bucketize)
