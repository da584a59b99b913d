"""Accessors for Dynamo's graphs."""

import operator
from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule, Node


def unwrapped(gm: GraphModule) -> GraphModule:
    """Return the graph itself: torch wraps a graph with list arguments."""
    plain: GraphModule = getattr(gm, "gm", gm)
    return plain


def nodes_of(gm: GraphModule) -> Iterator[Node]:
    """Yield the nodes of a graph and of the bodies of its higher-order ops."""
    for module in gm.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def name_of(node: Node) -> str:
    """Return the name of the function or method that a node calls, or an empty string."""
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


def writes_by_name(node: Node) -> bool:
    """Return whether a call writes to its first argument, by its name. `__and__` and Python's
    `and_` do not."""
    name = name_of(node)
    is_python = getattr(node.target, "__module__", "") == operator.and_.__module__
    return name.endswith("_") and not name.endswith("__") and not is_python


def fake_of(value: Any) -> Any:
    """Return the fake result of a node of Dynamo or `torch.export`; return any other argument
    unchanged."""
    if not isinstance(value, Node):
        return value
    return value.meta.get("example_value", value.meta.get("val"))
