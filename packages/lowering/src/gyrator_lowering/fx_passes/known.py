"""What of a graph is known before it runs, once some of its inputs are."""

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from gyrator_lowering.folding import FROZEN, encoded

aten = torch.ops.aten

_NAMESPACES = ("aten", "prims", "mkldnn", "mkl", "onednn", "quantized_decomposed")
_DEQUANTIZE = "quantized_decomposed.dequantize"
_GATHERS = (
    aten.embedding.default, aten.index.Tensor, aten.index_select.default, aten.gather.default,
)  # fmt: skip
"""What reads a few rows of a table, in kernels."""
_MOST_BYTES = 1 << 22
"""Of constants that come from no input, such as masks: larger ones are computed in each call."""


def known_nodes(gm: GraphModule) -> set[Node]:
    """Return what is known once the inputs with `FROZEN` in their `meta` are: pure calls of what is
    known, and of nothing at all."""
    known: set[Node] = set()
    rooted: set[Node] = set()
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            if node.meta.get(FROZEN) and not any(map(_may_write, node.users)):
                rooted.add(node)
                known.add(node)
        elif _pure(node) and known.issuperset(node.all_input_nodes) and not _as_well_narrow(node):
            if not rooted.isdisjoint(node.all_input_nodes):
                rooted.add(node)
                known.add(node)
            elif _bytes(node) <= _MOST_BYTES:
                known.add(node)
    return known


def _pure(node: Node) -> bool:
    """Whether a call gives tensors of constant sizes that depend on its operands alone."""
    if node.target is not operator.getitem:
        op = node.target
        if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
            return False
        seeded = torch.Tag.nondeterministic_seeded in op.tags
        if op.namespace not in _NAMESPACES or op._schema.is_mutable or seeded:
            return False
    val = node.meta.get("val")
    made = val if isinstance(val, (tuple, list)) else (val,)
    return all(v is None or _is_fixed(v) for v in made) and _stored(node.args, node.kwargs)


def _is_fixed(val: Any) -> bool:
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
        return False
    return all(isinstance(n, int) for n in (*val.shape, *val.stride()))


def _as_well_narrow(node: Node) -> bool:
    """Whether a node dequantises a table of which kernels read rows: it takes less memory as it is,
    and they dequantise what they read."""
    return str(node.target).startswith(_DEQUANTIZE) and all(
        u.target in _GATHERS for u in node.users
    )


def _stored(*values: Any) -> bool:
    """Whether arguments can be written as JSON."""
    try:
        encoded(values, lambda node: {})
    except TypeError:
        return False
    return True


def _may_write(user: Node) -> bool:
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return user.op != "output" and user.target is not operator.getitem
    return bool(schema.is_mutable)


def _bytes(node: Node) -> int:
    val = node.meta["val"]
    made = val if isinstance(val, (tuple, list)) else (val,)
    return sum(v.numel() * v.element_size() for v in made if v is not None)
