"""Sorting along a dimension. Selections stay in ATen, which need not sort."""

from typing import Any

from gyrator_ir.types import DType
from gyrator_lowering.builder.capabilities import is_within
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.extern import left_to_aten
from gyrator_lowering.table import FallbackToAten, TableBuilder

SELECTION = "a partial selection is cheaper than the sort that kernels have"


def sort(b: LoopBuilder, x: TensorValue, *args: Any, **named: Any) -> Any:
    """Sorted values and their indices; equal values keep their order."""
    positional = list(args)
    if positional and (positional[0] is None or isinstance(positional[0], bool)):
        positional.pop(0)
    dim = named.get("dim", positional[0] if positional else -1)
    descending = named.get("descending", positional[1] if len(positional) > 1 else False)
    values, indices = b.outs
    assert values is not None and indices is not None
    if x.ndim == 0 or x.dtype is DType.BOOL or not _sorts(b, x, dim % x.ndim):
        raise FallbackToAten
    wide = Spec(values.dtype.compute, values.device, values.shape, values.strides)
    into = [b.buffer(wide), b.buffer(indices)]
    b.sort(
        lambda ops, index: ops.wide(ops.load(x, index)),
        x.shape,
        dim % x.ndim,
        into,
        descending=bool(descending),
        stable=True,
    )
    return (into[0] if wide == values else b.copy(into[0], values)), into[1]


def _sorts(b: LoopBuilder, x: TensorValue, dim: int) -> bool:
    """Return whether the device's kernels sort a dimension of `x`."""
    capabilities = b.targets[x.device.type].capabilities
    return capabilities.sorts and is_within(capabilities.sort_extent, x.shape[dim])


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.sort.default", "aten.sort.stable")(sort)
    for op in ("topk", "kthvalue", "median", "nanmedian", "mode"):
        table.rule(f"aten.{op}")(left_to_aten(SELECTION))
