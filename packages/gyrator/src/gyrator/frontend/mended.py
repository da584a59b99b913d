"""Arguments that torch's fake kernels misread, written so that they read them right."""

import torch
from torch.fx import GraphModule

from gyrator.frontend.dynamo_graph import fake_of, name_of


def mend(gm: GraphModule) -> None:
    """Let `unique_consecutive` count its last axis from the first one on, in place.

    Given the last axis as -1, its fake kernel has a result of more axes than the op's.
    """
    for node in gm.graph.nodes:
        if not node.op.startswith("call_") or name_of(node) != "unique_consecutive":
            continue
        given = node.args[3] if len(node.args) > 3 else node.kwargs.get("dim")
        x, dim = fake_of(node.args[0]) if node.args else None, fake_of(given)
        # What the fake kernel makes of a number known at run time alone is guarded by its value.
        if not isinstance(x, torch.Tensor) or dim is None or int(dim) != -1 or not x.dim():
            continue
        if len(node.args) > 3:
            node.update_arg(3, x.dim() - 1)
        else:
            node.update_kwarg("dim", x.dim() - 1)
