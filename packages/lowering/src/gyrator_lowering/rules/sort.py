"""Sorting along a dimension; selections stay in ATen, which need not sort."""

from typing import Any

from gyrator_ir.types import DType
from gyrator_lowering.builder.capabilities import reaches
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.extern import kept
from gyrator_lowering.table import FallbackToAten, TableBuilder

SELECTION = "a partial selection is cheaper than the sort that kernels have"


def sort(b: LoopBuilder, x: TensorValue, *args: Any, **named: Any) -> Any:
    """Values in order, and their positions; equal values keep their order."""
    given = list(args)
    if given and (given[0] is None or isinstance(given[0], bool)):
        given.pop(0)
    dim = named.get("dim", given[0] if given else -1)
    descending = named.get("descending", given[1] if len(given) > 1 else False)
    values, places = b.outs
    assert values is not None and places is not None
    if x.ndim == 0 or x.dtype is DType.BOOL or not _sorts(b, x, dim % x.ndim):
        raise FallbackToAten
    wide = Spec(values.dtype.compute, values.device, values.shape, values.strides)
    into = [b.buffer(wide), b.buffer(places)]
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
    """Whether the device's kernels sort along a dimension of `x`."""
    offered = b.targets[x.device.type].capabilities
    return offered.sorts and reaches(offered.sort_extent, x.shape[dim])


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.sort.default", "aten.sort.stable")(sort)
    for op in ("topk", "kthvalue", "median", "nanmedian", "mode"):
        table.rule(f"aten.{op}")(kept(SELECTION))
