"""`narrow-pool-indices`: the backward pass of max pooling reads positions in windows, of one byte.

The op returns the index of each maximum in its plane, of eight bytes. Its position in its window is
computed from that by pointwise ops, and the index again from the position, so that a partitioner
saves the position.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.insert import Insert, insert
from gyrator_lowering.rules.pool import all_static, per_dimension

aten = torch.ops.aten
_BITS = 4
_ROWS, _COLUMNS = 8, 1 << _BITS
"""The largest windows: a byte holds the column in its four lowest bits, and above them the row."""


@frozen
class _Windows:
    """Windows of two dimensions, and the width of the planes."""

    size: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    width: int


@frozen
class NarrowPoolIndices:
    """Save positions in windows on devices for which that pays, for planes of known sizes and
    windows of at most 8 rows and 16 columns."""

    name: ClassVar[str] = "narrow-pool-indices"
    devices: frozenset[str] = frozenset()

    @classmethod
    def of(cls, targets: Mapping[str, Target]) -> "NarrowPoolIndices":
        """Return the pass for these targets."""
        return cls(frozenset(d for d, t in targets.items() if t.heuristics.saved_positions))

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in list(gm.graph.nodes):
            if node.target is not aten.max_pool2d_with_indices_backward.default:
                continue
            indices = node.args[7]
            windows = _windows(node.args[1], indices, *node.args[2:6])
            if windows is None or indices.meta["val"].device.type not in self.devices:
                continue
            call = partial(insert, gm, node)
            node.update_arg(7, _index(call, _position(call, indices, windows), windows))
            changed = True
        return changed


def _windows(
    x: Node, indices: Node, size: Any, stride: Any, padding: Any, dilation: Any
) -> _Windows | None:
    """Return the windows of a pooling, or None if they or the planes are not of known sizes, or if
    they are too large."""
    size = per_dimension(size, 2)
    stride = per_dimension(stride, 2, size)
    padding, dilation = per_dimension(padding, 2), per_dimension(dilation, 2)
    planes = (*x.meta["val"].shape[-2:], *indices.meta["val"].shape[-2:])
    known = all_static(planes, size, stride, padding, dilation)
    if not known or size[0] > _ROWS or size[1] > _COLUMNS:
        return None
    return _Windows(size, stride, padding, dilation, planes[1])


def _position(call: Insert, indices: Node, w: _Windows) -> Node:
    """Insert the positions in windows of indices in planes."""
    row = call(aten.div.Tensor_mode, indices, w.width, rounding_mode="floor")
    column = call(aten.sub.Tensor, indices, call(aten.mul.Tensor, row, w.width))
    rows, columns = _starts(call, indices, w)
    down, across = call(aten.sub.Tensor, row, rows), call(aten.sub.Tensor, column, columns)
    if w.dilation[0] > 1:
        down = call(aten.div.Tensor_mode, down, w.dilation[0], rounding_mode="floor")
    if w.dilation[1] > 1:
        across = call(aten.div.Tensor_mode, across, w.dilation[1], rounding_mode="floor")
    position = call(aten.add.Tensor, call(aten.mul.Tensor, down, _COLUMNS), across)
    return call(torch.ops.prims.convert_element_type.default, position, torch.int8)


def _index(call: Insert, position: Node, w: _Windows) -> Node:
    """Insert the indices in planes of positions in windows."""
    position = call(torch.ops.prims.convert_element_type.default, position, torch.int64)
    down = call(aten.bitwise_right_shift.Tensor_Scalar, position, _BITS)
    across = call(aten.bitwise_and.Scalar, position, _COLUMNS - 1)
    rows, columns = _starts(call, position, w)
    if w.dilation[0] > 1:
        down = call(aten.mul.Tensor, down, w.dilation[0])
    if w.dilation[1] > 1:
        across = call(aten.mul.Tensor, across, w.dilation[1])
    row, column = call(aten.add.Tensor, rows, down), call(aten.add.Tensor, columns, across)
    return call(aten.add.Tensor, call(aten.mul.Tensor, row, w.width), column)


def _starts(call: Insert, like: Node, w: _Windows) -> tuple[Any, Any]:
    """Insert the first rows and the first columns of windows, which broadcast."""
    value = like.meta["val"]
    starts = [
        call(
            aten.arange.start_step, -padding, count * stride - padding, stride,
            dtype=torch.int64, device=value.device, pin_memory=False,
        )
        for count, stride, padding in zip(value.shape[-2:], w.stride, w.padding, strict=True)
    ]  # fmt: skip
    return call(aten.unsqueeze.default, starts[0], 1), starts[1]
