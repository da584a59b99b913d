"""Convolutions that kernels compute by register tiles of pixels and features, with the zeros around
the image, and the addition and the function after it, which oneDNN computes otherwise: it adds in
another order, and loses NaN."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from gyrator_lowering.folding import PACKED
from gyrator_lowering.fx_passes.insert import contiguous, insert, insert_like, replace
from gyrator_lowering.fx_passes.products.post_ops import (
    NOTHING,
    Activation,
    activation_of,
    only_reader,
)
from gyrator_lowering.torch_bridge.graphs import is_channels_last
from gyrator_lowering.torch_bridge.kernel_ops import FUNCTIONS
from gyrator_lowering.torch_bridge.random_ops import register_ops

aten = torch.ops.aten
_RANK = 4
_FEW_CHANNELS = 4
_NO_ZEROS = (0, 0, 0, 0)
_LEAST_FEATURES = 8
"""The least number of features, so that at most half of a panel is computed in vain."""
_LEAST_PIXELS = 4
"""The least number of pixels of the result, to hide the latency of additions."""
_MOST_WEIGHTS = 1 << 18
"""A kernel reads a larger weight in parts for L2, if it meets several images."""


def tiles(node: Any, most_pixels: int) -> bool:
    """Return whether kernels have tiles for a convolution of channels-last images. Of several
    images with large weights, the library is faster if a result has more than `most_pixels`."""
    x, weight, bias, _, _, dilation, transposed, _, groups = node.args
    image, window, result = (n.meta["val"] for n in (x, weight, node))
    sizes = (*image.shape, *window.shape, *result.shape)
    return (
        result.dtype == torch.float32
        and bias is not None
        and not transposed
        and groups == 1
        and all(d == 1 for d in dilation)
        and all(isinstance(n, int) for n in sizes)
        and result.shape[1] >= _LEAST_FEATURES
        and result.shape[2] * result.shape[3] >= _LEAST_PIXELS
        and (
            result.shape[0] == 1
            or window.numel() <= _MOST_WEIGHTS
            or result.shape[2] * result.shape[3] <= most_pixels
        )
    )


def convolve_in_panels(gm: GraphModule, node: Any, columns: int) -> None:
    """Replace a convolution, and the addition and the function after it, by a kernel that reads the
    weight in panels of so many features, or of half as many."""
    register_ops()
    x, weight, bias, stride, *_ = node.args
    total, other = addition_of(node)
    last = node if total is None else total
    end, after = function_after(last)
    call = partial(insert, gm, node)
    features, channels, *window = weight.meta["val"].shape
    width = columns if features % columns == 0 else columns // 2
    count = -(-features // width)
    if missing := count * width - features:
        weight = call(aten.constant_pad_nd.default, weight, [0] * 7 + [missing])
        bias = call(aten.constant_pad_nd.default, bias, [0, missing])
    split = call(aten.view.default, weight, [count, width, channels, *window])
    panels = contiguous(call, call(aten.permute.default, split, [0, 3, 4, 2, 1]))
    op = torch.ops.gyrator.panel_conv.default
    inside, pads = unpadded(node)
    numbers = features, other, of_both(stride), pads, after.attr, [*after.scalars]
    new = insert_like(gm, end, op, _images(inside), panels, bias, *numbers)
    replace(gm, end, new)
    for done in (last, node):
        if done is not end and not done._erased:
            gm.graph.erase_node(done)
    erase_unread(gm, x)


def function_after(last: Any) -> tuple[Any, Activation]:
    """Return the function that kernels apply to the sums of a convolution, and its node; the given
    node and no function if what reads it is none."""
    reader = only_reader(last)
    after = None if reader is None or reader.args[0] is not last else activation_of(reader)
    return (last, NOTHING) if after is None or after.attr not in FUNCTIONS else (reader, after)


def erase_unread(gm: GraphModule, x: Any) -> None:
    """Erase what a convolution read, and of what that was computed, if nothing else reads it."""
    for done in (x, *x.all_input_nodes):
        if done.op == "call_function" and not done.users:
            gm.graph.erase_node(done)


def of_both(numbers: Sequence[int]) -> list[int]:
    """Return a convolution's numbers of rows and of columns, which may be given as one."""
    return [*numbers] if len(numbers) > 1 else [*numbers, *numbers]


def unpadded(node: Any) -> tuple[Any, list[int]]:
    """Return the image that a convolution reads, without zeros around it if nothing else reads
    these: kernels write them anyway, or leave them out. Then the rows above and the columns on the
    left that are zeros, and those below and on the right."""
    image, zeros = _image_within(node.args[0])
    around = of_both(node.args[4])
    return image, [n + m for n, m in zip([*around, *around], zeros, strict=True)]


def _image_within(x: Any) -> tuple[Any, Sequence[int]]:
    """Return the image that `x` is with zeros around it, and these zeros in the order of
    `unpadded`; else `x` and none."""
    padded = _unmoved(x)
    if padded.target is not aten.constant_pad_nd.default or len(x.users) + len(padded.users) > 2:
        return x, _NO_ZEROS
    image: Any = padded.args[0]
    pads: Any = padded.args[1]
    fake = image.meta["val"]
    is_last = is_channels_last(fake)
    fits = len(pads) <= len(_NO_ZEROS) and all(isinstance(n, int) and n >= 0 for n in pads)
    are_zeros = not any(padded.args[2:]) and not padded.kwargs
    if not are_zeros or not fits or not (is_last or fake.shape[1] <= _FEW_CHANNELS):
        return x, _NO_ZEROS
    left, right, top, bottom = [*pads] + [0] * (len(_NO_ZEROS) - len(pads))
    return image, (top, left, bottom, right)


def _images(x: Any) -> list[Node]:
    """Return the images that `x` concatenates, or of which it is a copy, if nothing else reads it:
    the kernel copies them anyway."""
    parts = _joined(x) if len(x.users) == 1 else []
    return parts or [_unmoved(x)]


def _joined(x: Any) -> list[Node]:
    """Return the channels-last images whose channels `x` concatenates; empty if there are none."""
    if x.target is not aten.cat.default or x.args[1:] not in ((1,), (-3,)):
        return []
    parts: list[Node] = x.args[0]
    fakes = [n.meta["val"] for n in parts]
    whole = all(
        f.dim() == _RANK and f.dtype == torch.float32 and f.shape[1] > 0 and f.stride(1) == 1
        for f in fakes
    )
    return list(parts) if whole else []


def _unmoved(x: Any) -> Node:
    """Return the images of which `x` is a channels-last copy, if they have few channels."""
    last = x.target is aten.clone.default and x.kwargs == {"memory_format": torch.channels_last}
    few = x.meta["val"].shape[1] <= _FEW_CHANNELS
    source: Node = x.args[0] if last and few else x
    return source


def addition_of(node: Node) -> tuple[Any, Any]:
    """Return the addition that is a node's only reader, and its other operand of the same
    layout."""
    total: Any = next(iter(node.users)) if len(node.users) == 1 else None
    if total is None or total.target is not aten.add.Tensor or total.kwargs:
        return None, None
    if len(total.all_input_nodes) != 2:
        return None, None
    other = next(a for a in total.args if a is not node)
    a, b = node.meta["val"], other.meta["val"]
    is_same_form = a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
    if not is_same_form or other.meta.get(PACKED):
        return None, None
    return total, other
