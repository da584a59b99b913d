"""Arguments that torch's fake kernels misread, written so that they read them right."""

from typing import Any

import torch
from torch.fx import GraphModule, Node


def mend(gm: GraphModule) -> None:
    """Let `unique_consecutive` count its last axis from the first one on, in place.

    Given the last axis as -1, its fake kernel has a result of more axes than the op's.
    """
    for node in gm.graph.nodes:
        if not node.op.startswith("call_") or _name(node.target) != "unique_consecutive":
            continue
        given = node.args[3] if len(node.args) > 3 else node.kwargs.get("dim")
        x, dim = _fake(node.args[0]) if node.args else None, _fake(given)
        # What the fake kernel makes of a number known at run time alone is guarded by its value.
        if not isinstance(x, torch.Tensor) or dim is None or int(dim) != -1 or not x.dim():
            continue
        if len(node.args) > 3:
            node.update_arg(3, x.dim() - 1)
        else:
            node.update_kwarg("dim", x.dim() - 1)


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _fake(value: Any) -> Any:
    return value.meta.get("example_value") if isinstance(value, Node) else value
