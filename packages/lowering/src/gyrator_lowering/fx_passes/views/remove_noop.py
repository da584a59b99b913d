"""`remove-noop`: removes views, conversions and pads that change nothing."""

from typing import Any, ClassVar

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.insert import insert, without_view
from gyrator_lowering.torch_bridge.schema import info_of

aten = torch.ops.aten

_SAME = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default,
        aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.permute.default,
        aten.slice.Tensor, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
    }
)  # fmt: skip

_INVOLUTIONS = frozenset({aten._conj.default, aten._neg_view.default})
"""Views that are their own inverses."""


@frozen
class RemoveNoop:
    """Replace a view, or a tensor padded by no element, by its argument if they are the same."""

    name: ClassVar[str] = "remove-noop"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        outputs = {a for n in gm.graph.nodes if n.op == "output" for a in n.all_input_nodes}
        changed = False
        for node in list(gm.graph.nodes):
            if node.op != "call_function":
                continue
            if node.target in _INVOLUTIONS:
                source = without_view(gm, node.args[0], node.target)
                if node in outputs and source is not None:  # a result is a tensor of its own
                    source = insert(gm, node, aten.alias.default, source)
            elif node in outputs:
                continue
            elif node.target in _SAME or _pads_nothing(node):
                source = node.args[0]
            else:
                continue
            if isinstance(source, Node) and _same(source.meta.get("val"), node.meta.get("val")):
                node.replace_all_uses_with(source)
                gm.graph.erase_node(node)
                changed = True
        return changed


def _pads_nothing(node: Node) -> bool:
    """Return whether a call pads by no element, and neither it nor a view of it may be a result,
    which would share memory with the argument then."""
    if node.target is not aten.constant_pad_nd.default:
        return False
    widths: Any = node.args[1]
    if not all(type(w) is int and w == 0 for w in widths):
        return False
    readers = [user.target for user in node.users]
    return not any(
        not isinstance(op, OpOverload) or op in _SAME or info_of(op).is_view for op in readers
    )


def _same(a: object, b: object) -> bool:
    """Return whether two fake tensors are equal in form, without adding a guard."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if a.dtype != b.dtype or a.dim() != b.dim() or a.requires_grad != b.requires_grad:
        return False
    return all(
        _equal(x, y)
        for p, q in ((a.shape, b.shape), (a.stride(), b.stride()))
        for x, y in zip(p, q, strict=True)
    ) and _equal(a.storage_offset(), b.storage_offset())


def _equal(a: object, b: object) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return False
