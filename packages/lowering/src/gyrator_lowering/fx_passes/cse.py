"""`cse`: equal pure calls are made once."""

import operator
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch.fx import GraphModule, Node

from gyrator_lowering.torch_bridge.schema import info_of

_KEPT = frozenset(
    {
        torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default, torch.ops.aten.new_empty.default,
        torch.ops.aten.clone.default,
    }
)  # fmt: skip


@frozen
class Cse:
    """Replace a call by an earlier equal one.

    Calls that draw random numbers, write to arguments or have effects stay, also those that bind
    the symbol of a size that values decide: each has a symbol of its own. So does everything
    in a graph that writes to an input before its end: a read before and a read after are not equal.
    Two calls whose memory the graph returns both stay too: eager returns two tensors there, and a
    caller may write to one of them.
    """

    name: ClassVar[str] = "cse"
    joint: bool = False
    """The graph will be parted: what it returns stands for no other call, for a caller may write to
    it before the backward part runs."""

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        nodes = list(gm.graph.nodes)
        seen: dict[Any, Node] = {}
        returned = _returned(nodes)
        changed = False
        for node in nodes:
            if isinstance(node.target, torch._ops.OpOverload) and info_of(node.target).writes:
                seen.clear()
                continue
            binds = node.meta.get("unbacked_bindings")
            if binds or not _pure(node.target) or (self.joint and node in returned):
                continue
            key = (node.target, _key(node.args), _key(node.kwargs))
            earlier = seen.setdefault(key, node)
            if earlier is not node and not (earlier in returned and node in returned):
                node.replace_all_uses_with(earlier)
                gm.graph.erase_node(node)
                changed = True
        return changed


def _returned(nodes: list[Node]) -> set[Node]:
    """Return the nodes whose memory the graph returns, as it is or through views."""
    returned: set[Node] = set()
    for node in reversed(nodes):
        if node.op == "output":
            returned.update(node.all_input_nodes)
        elif node in returned and node.op == "call_function":
            returned.update(_shared(node))
    return returned


def _shared(node: Node) -> Iterable[Node]:
    """Return the arguments that share memory with what a node returns."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return node.all_input_nodes  # an item of a tuple, or a call of which nothing is known
    info = info_of(op)
    places = {p for p in (*info.views, *info.results_written) if p is not None}
    return [a for p in places if p < len(node.args) and isinstance(a := node.args[p], Node)]


def _pure(op: Any) -> bool:
    if getattr(op, "__module__", None) == operator.getitem.__module__:  # of tuples and symbols
        return True
    return (
        isinstance(op, torch._ops.OpOverload)
        and op not in _KEPT
        and torch.Tag.nondeterministic_seeded not in op.tags
        and op.namespace in ("aten", "prims", "gyrator")
        and bool(op._schema.returns)
    )


def _key(value: Any) -> Any:
    """Return a hashable form that tells 1, 1.0 and True apart."""
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    return (type(value).__name__, repr(value)) if isinstance(value, float) else (type(value), value)
