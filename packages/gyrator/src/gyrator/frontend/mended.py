"""Calls that torch's fake kernels misread, written or annotated so that graphs say what they do."""

import operator

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


def mend_types(joint: GraphModule) -> None:
    """Let attention of doubles on the host say that the sums it keeps are doubles, in place.

    The fake kernel of torch 2.11 has them in `f32`, which the gradient's kernel does not take.
    """
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    for node in joint.graph.find_nodes(op="call_function", target=op):
        result, sums, *rest = node.meta["val"]
        if result.dtype is sums.dtype or result.dtype is not torch.float64:
            continue
        with sums.fake_mode:
            exact = torch.empty_like(sums, dtype=result.dtype)
        node.meta["val"] = (result, exact, *rest)
        for user in node.users:
            if user.target is operator.getitem and user.args[1] == 1:
                user.meta["val"] = exact
