"""Calls that torch's fake kernels misread, written or annotated so that graphs say what they do."""

import operator

import torch
from torch.fx import GraphModule

from gyrator.frontend.dynamo_graph import fake_of, name_of

_AXES = {"unique_consecutive": 3, "norm": 2, "linalg_norm": 2, "linalg_vector_norm": 2}
"""At which place among the arguments each function takes `dim`."""


def mend(gm: GraphModule) -> None:
    """Count axes from the first one on, in place, where fake kernels misread others.

    Of the last axis as -1, that of `unique_consecutive` has a result of more axes than the op's,
    and those of norms in torch 2.11 keep an axis of one element.
    """
    for node in gm.graph.nodes:
        place = _AXES.get(name_of(node)) if node.op.startswith("call_") else None
        if place is None:
            continue
        positional = len(node.args) > place
        given = node.args[place] if positional else node.kwargs.get("dim")
        x = fake_of(node.args[0]) if node.args else None
        if not isinstance(x, torch.Tensor) or given is None or not x.dim():
            continue
        # What the fake kernel makes of a number known at run time alone is guarded by its value.
        several = isinstance(given, list | tuple)
        dims = [int(fake_of(d)) % x.dim() for d in (given if several else (given,))]
        if positional:
            node.update_arg(place, dims if several else dims[0])
        else:
            node.update_kwarg("dim", dims if several else dims[0])


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
