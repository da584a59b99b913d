"""`multiply-pixels`: gradients of convolutions with windows of a pixel are products of matrices.

Each pixel is a row of channels, and the weight a matrix. CPU libraries call the same products, but
fill their results with zeros first, or convert the operands to layouts of their own.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import GraphModule

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.insert import Insert, insert, replace
from gyrator_lowering.fx_passes.products.linear_calls import LIBRARIES, devices_with
from gyrator_lowering.fx_passes.products.split_depthwise_gradients import gradients_of_convolutions
from gyrator_lowering.torch_bridge.graphs import is_channels_last

aten = torch.ops.aten
_RANK = 4


@frozen
class MultiplyPixels:
    """Compute the gradients of `float32` convolutions of single pixels by matrix products."""

    name: ClassVar[str] = "multiply-pixels"
    devices: frozenset[str] = frozenset()
    """Device types whose library multiplies matrices as fast as it convolves pixels."""

    @classmethod
    def of(cls, targets: Mapping[str, Target]) -> "MultiplyPixels":
        """Return the pass for some targets, by device type."""
        return cls(devices_with(LIBRARIES, targets))

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        nodes = [n for n in gradients_of_convolutions(gm, self.devices) if _is_of_pixels(n)]
        for node in nodes:
            _multiply(gm, node)
        return bool(nodes)


def _is_of_pixels(node: Any) -> bool:
    """Return whether all gradients of a convolution are products of matrices that are in memory."""
    grad, x, weight = (a.meta["val"] for a in node.args[:3])
    _, stride, padding, _, transposed, _, groups = node.args[3:10]
    fakes = [grad, x, weight, *(f for f in node.meta["val"] if f is not None)]
    if any(f.dtype is not torch.float32 or f.layout is not torch.strided for f in fakes):
        return False
    if not all(isinstance(n, int) for f in fakes for n in (*f.shape, *f.stride())):
        return False
    if weight.dim() != _RANK or transposed or groups != 1 or 0 in (*x.shape, *weight.shape):
        return False
    if any(n != 1 for n in (*weight.shape[2:], *stride)) or any(padding):
        return False
    to_image, to_weight, _ = node.meta["val"]
    return (
        all(is_channels_last(f) or _is_single(f) for f in (grad, x))
        and (to_image is None or _lies_last(to_image) or _is_single(to_image))
        and (to_weight is None or to_weight.is_contiguous())
    )


def _is_single(image: Tensor) -> bool:
    """Return whether a tensor is the planes of one image in memory."""
    return image.shape[0] == 1 and image.is_contiguous()


def _lies_last(result: Tensor) -> bool:
    """Return whether a result has the strides of channels-last images, also along single elements,
    whose strides views keep."""
    _, channels, tall, wide = result.shape
    return result.stride() == (channels * tall * wide, 1, wide * channels, channels)


def _multiply(gm: GraphModule, node: Any) -> None:
    call = partial(insert, gm, node)
    grad, x, weight = node.args[:3]
    rows = _rows(call, grad)
    for user in list(node.users):
        like = user.meta["val"]
        if user.args[1] == 0:
            filters = call(aten.select.int, call(aten.select.int, weight, 3, 0), 2, 0)
            if _lies_last(like):
                product = call(aten.mm.default, rows, filters)
            else:
                turned = _turned(call, filters)
                product = call(aten.mm.default, turned, _turned(call, rows))
        elif user.args[1] == 1:
            product = call(aten.mm.default, _turned(call, rows), _rows(call, x))
        else:
            replace(gm, user, call(aten.sum.dim_IntList, grad, [0, 2, 3]))
            continue
        replace(gm, user, _unfolded(call, product, like))
    gm.graph.erase_node(node)


def _turned(call: Insert, matrix: Any) -> Any:
    return call(aten.permute.default, matrix, [1, 0])


def _rows(call: Insert, image: Any) -> Any:
    """Return images as a matrix of pixels by channels."""
    fake = image.meta["val"]
    channels, pixels = fake.shape[1], fake.shape[0] * math.prod(fake.shape[2:])
    if is_channels_last(fake):
        last = call(aten.permute.default, image, [0, 2, 3, 1])
        return call(aten.view.default, last, [pixels, channels])
    return _turned(call, call(aten.view.default, image, [channels, pixels]))


def _unfolded(call: Insert, matrix: Any, like: Tensor) -> Any:
    """Return a row-major matrix as a tensor like `like`, whose memory it is."""
    outer, inner, tall, wide = like.shape
    if not _lies_last(like):
        return call(aten.view.default, matrix, [outer, inner, tall, wide])
    last = call(aten.view.default, matrix, [outer, tall, wide, inner])
    return call(aten.permute.default, last, [0, 3, 1, 2])
