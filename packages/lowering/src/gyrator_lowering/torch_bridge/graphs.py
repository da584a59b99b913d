"""The results of FX graphs, and the fake tensors and symbolic numbers of their nodes."""

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import make_channels_last_strides_for
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true


def graph_results(gm: GraphModule) -> tuple[Any, ...]:
    """Return the nodes and constants that a graph returns, in order."""
    (returned,) = gm.graph.output_node().args
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


def fake_of(value: Any) -> Any:
    """Return an argument with its node, or the nodes of a list, replaced by their fake values."""
    if isinstance(value, Node):
        return value.meta["val"]
    return [fake_of(v) for v in value] if isinstance(value, (list, tuple)) else value


def is_channels_last(images: Tensor) -> bool:
    """Return whether a fake tensor is known to hold images, densely, pixel by pixel.

    Where the batch is a symbol, torch 2.11 denies it of tensors that have the strides.
    """
    if images.dim() != 4:
        return False
    if images.is_contiguous(memory_format=torch.channels_last):
        return True
    dense = make_channels_last_strides_for(images.shape)
    axes = zip(images.shape, images.stride(), dense, strict=True)
    known = statically_known_true
    return all(known(s == t) or known(n == 1) for n, s, t in axes)
