"""The fake tensors and symbolic numbers of an FX graph."""

from typing import Any

from torch.fx import Node


def fake_of(value: Any) -> Any:
    """Return an argument with its node, or the nodes of a list, replaced by their fake values."""
    if isinstance(value, Node):
        return value.meta["val"]
    return [fake_of(v) for v in value] if isinstance(value, (list, tuple)) else value
