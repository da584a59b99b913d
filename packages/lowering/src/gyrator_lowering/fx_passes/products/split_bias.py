"""`split-bias`: generated kernels add a convolution's bias and sum its gradient.

Some libraries do not add biases: ATen adds the bias in a kernel of its own, and sums its gradient
in another, each with an additional pass over the whole result.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.insert import insert, replace

aten = torch.ops.aten

_MASK = 10
"""The position of `output_mask` among the arguments of `convolution_backward`."""


@frozen
class SplitBias:
    """Split biases from convolutions."""

    name: ClassVar[str] = "split-bias"
    devices: frozenset[str] = frozenset()
    """Device types whose library does not add biases."""

    @classmethod
    def of(cls, targets: Mapping[str, Target]) -> "SplitBias":
        """Return the pass for some targets, by device type."""
        return cls(frozenset(d for d, t in targets.items() if t.heuristics.unfused_bias))

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        passes = {aten.convolution.default: _added, aten.convolution_backward.default: _summed}
        changed = False
        for node in list(gm.graph.nodes):
            change = passes.get(node.target)
            if change is not None and self._is_split(node.args[0]):
                changed |= change(gm, node)
        return changed

    def _is_split(self, x: Any) -> bool:
        fake = x.meta["val"]
        return fake.device.type in self.devices and fake.dtype.is_floating_point


def _added(gm: GraphModule, node: Any) -> bool:
    bias = node.args[2]
    fake = node.meta["val"]
    if not isinstance(bias, Node) or bias.meta["val"].dtype != fake.dtype:
        return False
    shape = [1, -1, *[1] * (fake.dim() - 2)]
    plain = insert(gm, node, aten.convolution.default, *node.args[:2], None, *node.args[3:])
    plain.meta["val"] = fake
    broadcast_bias = insert(gm, node, aten.view.default, bias, shape)
    total = insert(gm, node, aten.add.Tensor, plain, broadcast_bias)
    if total.meta["val"].stride() != fake.stride():
        for new in (total, broadcast_bias, plain):
            gm.graph.erase_node(new)
        return False
    replace(gm, node, total)
    return True


def _summed(gm: GraphModule, node: Any) -> bool:
    mask = list(node.args[_MASK])
    gradients = [n for n in node.users if n.args[1] == 2]
    if not mask[2] or not gradients:
        return False
    grad = node.args[0]
    planes = [0, *range(2, grad.meta["val"].dim())]
    total = insert(gm, node, aten.sum.dim_IntList, grad, planes)
    for gradient in gradients:
        replace(gm, gradient, total)
    mask[2] = False
    node.args = (*node.args[:_MASK], mask)
    if "val" in node.meta:
        node.meta["val"] = (*node.meta["val"][:2], None)
    return True
