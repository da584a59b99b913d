"""`winograd`: convolutions with windows of 3 x 3 take 16 products for four results instead of 36.

This is F(2 x 2, 3 x 3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
(2016). Tiles of 4 x 4 elements are transformed by additions, multiplied by a transformed weight,
which is a constant, and transformed back. Sums are as accurate as direct ones for elements of
similar size, but an element adds rounding errors, or NaN if it is not finite, to the other results
of its tile.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from attrs import field
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.constants import constant_nodes
from gyrator_lowering.fx_passes.insert import insert_graph, replace
from gyrator_lowering.fx_passes.layouts.channels_last import ImageConvolution
from gyrator_lowering.fx_passes.products.linear_calls import LIBRARIES, devices_with
from gyrator_lowering.torch_bridge.graphs import is_channels_last

aten = torch.ops.aten

_SHAPE = ([1, 1], [1, 1], False, [0, 0], 1)
"""Stride, dilation, transposed, output padding and groups of the convolutions that are replaced."""
_FEWEST_CHANNELS = 32
"""The minimum number of channels, to pay for the transforms."""


class Multiplying(Protocol):
    """Measurements of a machine's libraries."""

    def in_tiles(self, convolution: ImageConvolution) -> bool:
        """Return whether transformed tiles are faster than the library's convolution."""
        ...


@frozen
class Winograd:
    """Compute convolutions with known weights on transformed tiles where that is faster."""

    name: ClassVar[str] = "winograd"
    devices: frozenset[str] = frozenset()
    """Device types whose convolutions `machine` measures."""
    machine: Multiplying | None = field(default=None, repr=False)

    @classmethod
    def of(cls, targets: Mapping[str, Target], machine: Multiplying | None) -> "Winograd":
        """Return the pass for some targets, by device type."""
        return cls(devices_with(LIBRARIES, targets), machine)

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        nodes = gm.graph.find_nodes(op="call_function", target=aten.convolution.default)
        constants = constant_nodes(gm) if nodes and self.machine is not None else set()
        changed = False
        for node in nodes:
            x, weight, bias, _, padding, *_ = node.args
            if weight not in constants or not self._gains(node):
                continue
            operands = [n for n in (x, weight, bias) if n is not None]
            function = partial(_from_weight, padding=tuple(padding))
            inner = make_fx(function, tracing_mode="fake")(*[n.meta["val"] for n in operands])
            (result,) = inner.graph.output_node().all_input_nodes
            if result.meta["val"].stride() == node.meta["val"].stride():
                replace(gm, node, insert_graph(gm, node, inner, operands))
                changed = True
        return changed

    def _gains(self, node: Any) -> bool:
        x, weight = (n.meta["val"] for n in node.args[:2])
        result = node.meta["val"]
        stride, _, *rest = node.args[3:]
        fixed = all(isinstance(n, int) and n > 0 for n in (*x.shape, *weight.shape, *result.shape))
        return (
            x.device.type in self.devices
            and fixed
            and x.dtype == torch.float32
            and tuple(weight.shape[2:]) == (3, 3)
            and (list(stride), *rest) == _SHAPE
            and min(weight.shape[:2]) >= _FEWEST_CHANNELS
            and is_channels_last(result)
            and self.machine is not None
            and self.machine.in_tiles(ImageConvolution.of(node))
        )


def transformed_weight(weight: Tensor) -> Tensor:
    """Return a weight (out, in, 3, 3) as 16 matrices (in, out), computed in `float64`."""
    wide = weight.double().permute(2, 3, 1, 0)

    def spread(w: Sequence[Tensor]) -> Tensor:
        ends, middle = (w[0] + w[2]) / 2, w[1] / 2
        return _stacked([w[0], ends + middle, ends - middle, w[2]])

    rows = spread([wide[k] for k in range(3)])
    both = spread([rows[:, k] for k in range(3)])
    return both.transpose(0, 1).flatten(0, 1).float()


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """Return a convolution with stride 1.

    Args:
        x: images (batch, in, height, width).
        weight: 16 matrices (in, out) of `transformed_weight`.
        bias: of shape (out,).
        padding: of rows and of columns, on either side.
    """
    batch, channels, *image = x.shape
    out = [n + 2 * p - 2 for n, p in zip(image, padding, strict=True)]
    rows, columns = tiles = [(n + 1) // 2 for n in out]
    top, left = padding
    bottom, right = (2 * t + 2 - n - p for t, n, p in zip(tiles, image, padding, strict=True))
    padded = aten.constant_pad_nd(x.permute(0, 2, 3, 1), [0, 0, left, right, top, bottom])
    parts = [
        [padded[:, i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2] for j in range(4)]
        for i in range(4)
    ]
    spread = _stacked([t for row in _both(_differences, parts) for t in row])
    products = torch.bmm(spread.reshape(16, batch * rows * columns, channels), weight)
    planes = products.view(4, 4, batch, rows, columns, weight.shape[2])
    sums = _both(_sums, [[planes[i, j] for j in range(4)] for i in range(4)])
    lines = [_stacked(row, 3) for row in sums]
    whole = _stacked(lines, 2).reshape(batch, 2 * rows, 2 * columns, weight.shape[2])
    result = whole[:, : out[0], : out[1]]
    if bias is not None:
        result = result + bias
    return result.contiguous().permute(0, 3, 1, 2)


def _stacked(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return `torch.stack` as an op that kernels compute."""
    return torch.cat([t.unsqueeze(dim) for t in tensors], dim)


def _from_weight(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, padding: tuple[int, int]
) -> Tensor:
    return convolved(x, transformed_weight(weight), bias, padding)


def _differences(d: Sequence[Tensor]) -> list[Tensor]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _sums(m: Sequence[Tensor]) -> list[Tensor]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _both(
    along: Callable[[Sequence[Tensor]], list[Tensor]], tile: Sequence[Sequence[Tensor]]
) -> list[list[Tensor]]:
    """Transform a tile along its columns, and then along its rows."""
    columns = [along(column) for column in zip(*tile, strict=True)]
    return [along(row) for row in zip(*columns, strict=True)]
