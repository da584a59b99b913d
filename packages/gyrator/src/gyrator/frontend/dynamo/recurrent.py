"""Training of LSTMs on the CPU.

For an input that needs no gradient, torch traces oneDNN's op in its inference form even if the
weights need gradients, and the backward pass then lacks values that this form does not save.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule

from gyrator.frontend.dynamo.graph import name_of, nodes_of


@contextmanager
def differentiable(gm: GraphModule, inputs: Sequence[Any]) -> Iterator[None]:
    """Make torch trace the LSTMs of a Dynamo graph step by step if they are differentiated;
    other graphs are not affected."""
    grads = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )
    if not grads or all(name_of(n) != "lstm" for n in nodes_of(gm)):
        yield
        return
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
