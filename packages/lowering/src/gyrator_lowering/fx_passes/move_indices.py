"""`move-indices`: index tensors created on the host are created on the device that they index."""

import operator
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_ir.types import HOST
from gyrator_lowering.builder.program import each
from gyrator_lowering.torch_bridge.graphs import fake_of
from gyrator_lowering.torch_bridge.schema import info_of

aten = torch.ops.aten

_CREATED = frozenset({aten.arange, aten.full, aten.ones, aten.zeros, torch.ops.prims.iota})
_CALLED = frozenset({aten.tril_indices, aten.triu_indices})
"""Ops without rules, for which a device may have no kernel."""
_COMPUTED = frozenset(
    {
        aten.abs, aten.add, aten.bitwise_and, aten.bitwise_not, aten.bitwise_or, aten.cat,
        aten.clone, aten.eq, aten.flip, aten.ge, aten.gt, aten.le, aten.lt, aten.maximum,
        aten.minimum, aten.mul, aten.ne, aten.neg, aten.rsub, aten.stack, aten.sub, aten.where,
    }
)  # fmt: skip
"""Ops that return the same integers on every device, and never raise."""
_MASKS = (torch.bool, torch.uint8)
_INDEXING = frozenset({aten.index, aten._unsafe_index, aten.index_put, aten._unsafe_index_put})


@frozen
class MoveIndices:
    """Create integers on the device of the tensors that they index, if nothing else reads them.

    A copy from the host synchronises with the device in every call, and cannot be captured in a
    device graph. Masks stay on the host, which counts their nonzero elements.
    """

    name: ClassVar[str] = "move-indices"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        device: dict[Node, torch.device] = {}
        for node in reversed(gm.graph.nodes):
            if _is_movable(node):
                devices = {device.get(user, _indexed(user, node)) for user in node.users}
                if len(devices) == 1 and (common := devices.pop()) is not None:
                    device[node] = common
        while unmovable := [n for n, d in device.items() if not _may_move(n, d, device)]:
            for node in unmovable:
                del device[node]
        for node in gm.graph.nodes:
            if node in device:
                if "device" in node.kwargs:
                    node.kwargs = {**node.kwargs, "device": device[node]}
                _update_fake(node)
        return bool(device)


def _is_movable(node: Node) -> bool:
    """Return whether a node returns host integers, and would return the same ones on another
    device."""
    if node.op != "call_function" or not _are_host_integers(node):
        return False
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if any(_tensors(n) for n in node.all_input_nodes):
        return node.target.overloadpacket in _COMPUTED or info_of(node.target).is_view
    is_created = node.target.overloadpacket in _CREATED | _CALLED and "device" in node.kwargs
    return is_created and not any(isinstance(a, float) for a in node.args)


def _are_host_integers(node: Node) -> bool:
    tensors = _tensors(node)
    return bool(tensors) and all(
        isinstance(t, FakeTensor)
        and t.device.type == HOST
        and not (t.dtype.is_floating_point or t.dtype.is_complex)
        for t in tensors
    )


def _tensors(node: Node) -> list[torch.Tensor]:
    return [v for v in each(node.meta.get("val")) if isinstance(v, torch.Tensor)]


def _indexed(user: Node, node: Node) -> torch.device | None:
    """Return the device of the tensor that a node indexes, if the user has no other use of it."""
    packet, value = getattr(user.target, "overloadpacket", None), node.meta["val"]
    if packet not in _INDEXING or not isinstance(value, torch.Tensor) or value.dtype in _MASKS:
        return None
    device: torch.device = fake_of(user.args[0]).device
    return None if device.type == HOST or node in (user.args[0], *user.args[2:]) else device


def _may_move(node: Node, device: torch.device, moved: dict[Node, torch.device]) -> bool:
    """Return whether all inputs of a node move with it, and all its users move or index there."""
    if getattr(node.target, "overloadpacket", None) in _CALLED and not _has(node.target, device):
        return False
    inputs = (n for n in node.all_input_nodes if _tensors(n))
    users = (moved.get(user, _indexed(user, node)) for user in node.users)
    return all(moved.get(n) == device for n in inputs) and all(d == device for d in users)


def _has(op: Any, device: torch.device) -> bool:
    """Return whether ATen has a kernel of an op for a device."""
    key = getattr(torch._C.DispatchKey, torch._C._dispatch_key_for_device(device.type))
    return bool(op.has_kernel_for_dispatch_key(key))


def _update_fake(node: Node) -> None:
    """Recompute a node's fake result for arguments on another device."""
    op: Any = node.target
    kwargs = {name: fake_of(value) for name, value in node.kwargs.items()}
    with next(t for t in _tensors(node) if isinstance(t, FakeTensor)).fake_mode:
        node.meta["val"] = op(*fake_of(node.args), **kwargs)
    node.meta.pop("tensor_meta", None)
