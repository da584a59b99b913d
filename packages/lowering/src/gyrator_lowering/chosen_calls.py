"""The calls of a graph that generated kernels compute instead of a library, by their factors."""

from collections.abc import Callable, Collection

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

Chooses = Callable[[Node, Tensor, Tensor], bool]
"""Whether kernels should compute a product of these two fake tensors."""


def chosen_calls(
    gm: GraphModule, ops: Collection[torch._ops.OpOverload], chooses: Chooses
) -> frozenset[str]:
    """Return the names of the chosen calls of `ops`, whose last two arguments are the factors."""
    calls = (n for n in gm.graph.nodes if n.op == "call_function" and n.target in ops)
    factors = ((n, *(a.meta["val"] for a in n.args[-2:])) for n in calls)
    return frozenset(n.name for n, x, y in factors if chooses(n, x, y))
