"""New calls in a graph, with the fake tensors that they give."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node


def insert(gm: GraphModule, before: Node, op: torch._ops.OpOverload, *args: Any) -> Node:
    """Return a new call before a node; its provenance is that node's."""
    with gm.graph.inserting_before(before):
        node = gm.graph.call_function(op, args)
    node.meta = {k: v for k, v in before.meta.items() if k not in ("val", "tensor_meta")}
    fakes = [fake_of(a) for a in args]
    mode = next(a.fake_mode for a in fakes if isinstance(a, FakeTensor))
    with mode:
        node.meta["val"] = op(*fakes)
    return node


def fake_of(value: Any) -> Any:
    """Return an argument with fake tensors in the place of nodes."""
    if isinstance(value, Node):
        return value.meta["val"]
    return [fake_of(v) for v in value] if isinstance(value, (list, tuple)) else value
