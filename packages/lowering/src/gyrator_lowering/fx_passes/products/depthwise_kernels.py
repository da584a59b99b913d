"""Depthwise convolutions that kernels compute, with the padding before them and the function after
them: oneDNN's call takes longer than its sums if images are small, and a kernel that pads, or
applies a function, reads and writes a whole image for it."""

from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from gyrator_lowering.fx_passes.insert import contiguous, insert, insert_like, replace
from gyrator_lowering.fx_passes.products.convolution_tiles import (
    erase_unread,
    function_after,
    of_both,
    unpadded,
)
from gyrator_lowering.generated_products import convolves_channels
from gyrator_lowering.torch_bridge.random_ops import register_ops

aten = torch.ops.aten
_RANK = 4


def is_depthwise(node: Node, window: int) -> bool:
    """Return whether a node convolves each channel of channels-last `float32` images separately,
    by a window of at most `window` elements."""
    args: Any = node.args
    x, weight, result = (n.meta["val"] for n in (*args[:2], node))
    transposed, groups = args[6], args[8]
    if transposed or result.dtype != torch.float32 or result.dim() != _RANK:
        return False
    if not all(isinstance(n, int) for n in x.shape):
        return False
    return convolves_channels(x, weight, groups, window) and bool(
        x.is_contiguous(memory_format=torch.channels_last)
    )


def convolve_in_kernels(gm: GraphModule, node: Any) -> None:
    """Replace a depthwise convolution, zeros around the image, and the function after it, by a
    kernel."""
    register_ops()
    x, weight, bias, stride, _, dilation, *_ = node.args
    call = partial(insert, gm, node)
    filters = contiguous(
        call, call(aten.permute.default, call(aten.select.int, weight, 1, 0), [1, 2, 0])
    )
    image, padding = unpadded(node)
    op = torch.ops.gyrator.depthwise_conv.default
    end, after = function_after(node)
    numbers = of_both(stride), padding, of_both(dilation), after.attr, [*after.scalars]
    replace(gm, end, insert_like(gm, end, op, image, filters, bias, *numbers))
    if end is not node:
        gm.graph.erase_node(node)
    erase_unread(gm, x)
