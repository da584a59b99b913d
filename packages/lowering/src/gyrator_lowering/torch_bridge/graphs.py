"""The results of FX graphs."""

from typing import Any

from torch.fx import GraphModule


def graph_results(gm: GraphModule) -> tuple[Any, ...]:
    """Return the nodes and constants that a graph returns, in order."""
    (returned,) = gm.graph.output_node().args
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)
