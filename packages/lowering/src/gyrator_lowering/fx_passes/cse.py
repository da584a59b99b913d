"""`cse`: common subexpression elimination of pure calls."""

import operator
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.torch_bridge.schema import info_of, writes

_DISTINCT = frozenset(
    {
        torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default, torch.ops.aten.new_empty.default,
        torch.ops.aten.clone.default,
    }
)  # fmt: skip


@frozen
class Cse:
    """Replace a call by an earlier equal one.

    Calls that generate random numbers, write to arguments or have effects are kept, and so are
    calls that bind an unbacked symbol, since each has a symbol of its own. A write to an input
    invalidates everything before it: reads before and after it are not equal. Two calls whose
    memory the graph returns are kept as well: eager returns two tensors, and a caller may write to
    one of them.
    """

    name: ClassVar[str] = "cse"
    joint: bool = False
    """The graph will be partitioned: a result of the graph replaces no other call, because a caller
    may write to it before the backward part runs."""

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        nodes = list(gm.graph.nodes)
        available: dict[Any, Node] = {}
        returned = _returned(nodes)
        changed = False
        for node in nodes:
            if writes(node):
                available.clear()
                continue
            binds = node.meta.get("unbacked_bindings")
            if binds or not _pure(node.target) or (self.joint and node in returned):
                continue
            key = (node.target, _key(node.args), _key(node.kwargs))
            earlier = available.setdefault(key, node)
            if earlier is not node and not (earlier in returned and node in returned):
                node.replace_all_uses_with(earlier)
                gm.graph.erase_node(node)
                changed = True
        return changed


def _returned(nodes: list[Node]) -> set[Node]:
    """Return the nodes whose memory the graph returns, directly or through views."""
    returned: set[Node] = set()
    for node in reversed(nodes):
        if node.op == "output":
            returned.update(node.all_input_nodes)
        elif node in returned and node.op == "call_function":
            returned.update(_shared(node))
    return returned


def _shared(node: Node) -> Iterable[Node]:
    """Return the arguments that may share memory with a node's results."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return node.all_input_nodes  # an item of a tuple, or an unknown call
    info = info_of(op)
    positions = {p for p in (*info.views, *info.results_written) if p is not None}
    return [a for p in positions if p < len(node.args) and isinstance(a := node.args[p], Node)]


def _pure(op: Any) -> bool:
    if getattr(op, "__module__", None) == operator.getitem.__module__:  # of tuples and symbols
        return True
    return (
        isinstance(op, torch._ops.OpOverload)
        and op not in _DISTINCT
        and torch.Tag.nondeterministic_seeded not in op.tags
        and op.namespace in ("aten", "prims", "gyrator")
        and bool(op._schema.returns)
    )


def _key(value: Any) -> Any:
    """Return a hashable key that distinguishes 1, 1.0 and True."""
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    return (type(value).__name__, repr(value)) if isinstance(value, float) else (type(value), value)
