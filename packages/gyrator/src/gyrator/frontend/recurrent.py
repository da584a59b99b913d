"""LSTMs on the host that are trained.

For an input that needs no gradient torch traces oneDNN's op in the form for inference, even where
the weights need gradients, and the backward pass lacks what that op did not keep.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule

from gyrator.frontend.dynamo_graph import name_of, unwrapped


@contextmanager
def differentiable(gm: GraphModule, inputs: Sequence[Any]) -> Iterator[None]:
    """Let torch trace what the LSTMs of a graph of Dynamo's do in each step, if they are
    differentiated; change nothing for other graphs."""
    grads = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )
    if not grads or all(name_of(n) != "lstm" for n in unwrapped(gm).graph.nodes):
        yield
        return
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
