"""Nodes of a graph that are constant once some of its inputs are known."""

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
"""Ops that read a few rows of a table, in kernels."""
_MOST_BYTES = 1 << 22
"""The size limit of constants without inputs, such as masks: larger ones are computed in each
call."""


def constant_nodes(gm: GraphModule) -> set[Node]:
    """Return the nodes that are constant if the inputs with `FROZEN` in their `meta` are: pure
    calls of constants, or without inputs."""
    constants: set[Node] = set()
    rooted: set[Node] = set()
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            if node.meta.get(FROZEN) and not any(map(_may_write, node.users)):
                rooted.add(node)
                constants.add(node)
        elif (
            _pure(node)
            and constants.issuperset(node.all_input_nodes)
            and not _is_gathered_table(node)
        ):
            if not rooted.isdisjoint(node.all_input_nodes):
                rooted.add(node)
                constants.add(node)
            elif _bytes(node) <= _MOST_BYTES:
                constants.add(node)
    return constants


def _pure(node: Node) -> bool:
    """Return whether a call returns tensors of static sizes that depend on its operands alone."""
    if node.target is not operator.getitem:
        op = node.target
        if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
            return False
        seeded = torch.Tag.nondeterministic_seeded in op.tags
        if op.namespace not in _NAMESPACES or op._schema.is_mutable or seeded:
            return False
    val = node.meta.get("val")
    results = val if isinstance(val, (tuple, list)) else (val,)
    return all(v is None or _is_fixed(v) for v in results) and _is_encodable(node.args, node.kwargs)


def _is_fixed(val: Any) -> bool:
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
        return False
    return all(isinstance(n, int) for n in (*val.shape, *val.stride()))


def _is_gathered_table(node: Node) -> bool:
    """Return whether a node dequantises a table of which kernels gather rows: the quantised table
    takes less memory, and kernels dequantise only the rows that they read."""
    return str(node.target).startswith(_DEQUANTIZE) and all(
        u.target in _GATHERS for u in node.users
    )


def _is_encodable(*values: Any) -> bool:
    """Return whether arguments can be encoded as JSON."""
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
    val = node.meta.get("val")
    results = val if isinstance(val, (tuple, list)) else (val,)
    return sum(v.numel() * v.element_size() for v in results if v is not None)
