"""`raise-convolutions`: convolutions of series become convolutions of images of the same elements.

Passes after it know images only: they keep these channels-last, pack weights, and compute what
follows with the convolution. A series is an image of height 1. One whose window skips steps is
rather an image as wide as the steps from one element of the window to the next, so that the window
is a column without gaps.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.constants import constant_nodes
from gyrator_lowering.fx_passes.insert import Insert, insert, insert_like, replace
from gyrator_lowering.fx_passes.products.convolution_tiles import addition_of
from gyrator_lowering.fx_passes.products.linear_calls import (
    BFLOAT16_LIBRARIES,
    LIBRARIES,
    devices_with,
)
from gyrator_lowering.fx_passes.products.post_ops import activation_of

aten = torch.ops.aten
_RANK = 3


@frozen
class RaiseConvolutions:
    """Compute convolutions of series whose weights are known as convolutions of images."""

    name: ClassVar[str] = "raise-convolutions"
    devices: frozenset[str] = frozenset()
    """Device types whose library packs `float32` weights."""
    bfloat16: frozenset[str] = frozenset()
    """Device types whose library packs `bfloat16` weights."""

    @classmethod
    def of(cls, targets: Mapping[str, Target]) -> "RaiseConvolutions":
        """Return the pass for some targets, by device type."""
        return cls(devices_with(LIBRARIES, targets), devices_with(BFLOAT16_LIBRARIES, targets))

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        nodes = gm.graph.find_nodes(op="call_function", target=aten.convolution.default)
        nodes = [n for n in nodes if self._packs(n)]
        constants = constant_nodes(gm) if nodes else set()
        nodes = [n for n in nodes if n.args[1] in constants]
        if all(n.args[1].meta["val"].shape[2] == 1 for n in nodes):
            return False  # windows of single elements alone do not pay for another layout
        for node in nodes:
            _raise(gm, node)
        return bool(nodes)

    def _packs(self, node: Any) -> bool:
        """Return whether the library packs weights of a convolution of series with static sizes,
        except for the batch, strides and window."""
        x, result = node.args[0].meta["val"], node.meta["val"]
        packing = {torch.float32: self.devices, torch.bfloat16: self.bfloat16}
        sizes = (*x.shape[1:], *result.shape[1:])
        window = (n for numbers in (*node.args[3:6], node.args[7]) for n in numbers)
        fixed = all(isinstance(n, int) for n in (*sizes, *x.stride(), *window))
        return (
            result.dim() == _RANK
            and x.device.type in packing.get(x.dtype, ())
            and fixed
            and all(n > 0 for n in sizes)
        )


@frozen
class _Shape:
    """How a series is seen as an image."""

    width: int = 0
    """The width of the image, or 0 for one of height 1."""

    def image(self, call: Insert, series: Node) -> Node:
        """Return a series, or a weight, as an image."""
        if not self.width:
            return call(aten.unsqueeze.default, series, 2)
        *outer, length = series.meta["val"].shape
        return call(aten.view.default, series, [*outer, length // self.width, self.width])

    def series(self, call: Insert, image: Node) -> Node:
        """Return an image as a series."""
        if not self.width:
            return call(aten.squeeze.dim, image, 2)
        *outer, height, width = image.meta["val"].shape
        return call(aten.view.default, image, [*outer, height * width])


def _padded(shape: _Shape, call: Insert, x: Any) -> Node:
    """Return a series as an image. One with zeros around it becomes an image with such zeros, which
    a kernel of the convolution can write itself, if they fill rows."""
    is_padded = x.target is aten.constant_pad_nd.default and not x.kwargs
    if is_padded and len(x.users) == 1 and len(x.args[1]) == 2:
        inside, pads, *value = x.args
        whole = (inside.meta["val"].shape[2], *pads)
        if not shape.width:
            return call(x.target, shape.image(call, inside), pads, *value)
        if all(isinstance(n, int) and n % shape.width == 0 for n in whole):
            rows = [0, 0, *(n // shape.width for n in pads)]
            return call(x.target, shape.image(call, inside), rows, *value)
    return shape.image(call, x)


def _raise(gm: GraphModule, node: Any) -> None:
    """Replace a convolution of series, and the addition and the function after it."""
    x, weight, bias, *window, transposed, more, groups = node.args
    stride, padding, dilation = (numbers[0] for numbers in window)
    batch, _, length = x.meta["val"].shape
    skips = dilation > 1 == stride and not transposed and isinstance(batch, int)
    call = partial(insert, gm, node)
    if skips and length % dilation == padding % dilation == 0:
        shape = _Shape(dilation)
        window = [[1, 1], [padding // dilation, 0], [1, 1]]
        filters = call(aten.unsqueeze.default, weight, 3)
    else:
        shape = _Shape()
        window = [[1, stride], [0, padding], [1, dilation]]
        filters = shape.image(call, weight)
    arguments = (_padded(shape, call, x), filters, bias, *window, transposed, [0, *more], groups)
    # Its layout is that of the series: the library's would be that of the input.
    result = shape.image(partial(insert, gm, node.next), node)
    image = insert_like(gm, result, node.target, *arguments)
    replace(gm, result, image)
    done = [node]
    total, other = addition_of(node)
    if total is not None:
        call = partial(insert, gm, total)
        operands = {node: image, other: shape.image(call, other)}
        image = call(total.target, *(operands[a] for a in total.args))
        done.append(total)
    reader = next(iter(done[-1].users)) if len(done[-1].users) == 1 else None
    if reader is not None and activation_of(reader) is not None:
        image = insert(gm, reader, reader.target, image, *reader.args[1:], **reader.kwargs)
        done.append(reader)
    series = shape.series(partial(insert, gm, image.next), image)
    done[-1].replace_all_uses_with(series)
    for old in reversed(done):
        gm.graph.erase_node(old)
