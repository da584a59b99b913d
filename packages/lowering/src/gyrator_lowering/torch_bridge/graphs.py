"""The results of FX graphs, and the fake tensors and symbolic numbers of their nodes."""

from typing import Any

from torch.fx import GraphModule, Node


def graph_results(gm: GraphModule) -> tuple[Any, ...]:
    """Return the nodes and constants that a graph returns, in order."""
    (returned,) = gm.graph.output_node().args
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


def fake_of(value: Any) -> Any:
    """Return an argument with its node, or the nodes of a list, replaced by their fake values."""
    if isinstance(value, Node):
        return value.meta["val"]
    return [fake_of(v) for v in value] if isinstance(value, (list, tuple)) else value
