"""`split-depthwise-gradients`: kernels sum the gradients of depthwise convolutions' weights.

One call computes all gradients of a convolution. CPU libraries compute that of the image as fast as
the convolution itself, but that of a large window's weight is faster in a kernel: see
`generated_products`.
"""

import operator
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.generated_products import sums_windows

aten = torch.ops.aten


@frozen
class SplitDepthwiseGradients:
    """Split the gradients of images from those of the weights that kernels compute."""

    name: ClassVar[str] = "split-depthwise-gradients"
    devices: frozenset[str] = frozenset()
    """Device types whose kernels are faster than the library at these gradients."""

    @classmethod
    def of(cls, targets: Mapping[str, Target]) -> "SplitDepthwiseGradients":
        """Return the pass for some targets, by device type."""
        return cls(frozenset(d for d, t in targets.items() if t.heuristics.depthwise_gradients))

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        calls = gradients_of_convolutions(gm, self.devices)
        nodes = [n for n in calls if sums_windows(n, with_image=True)]
        for node in nodes:
            _split(gm, node)
        return bool(nodes)


def gradients_of_convolutions(gm: GraphModule, devices: Collection[str]) -> list[Any]:
    """Return the calls on these devices whose gradients are read one by one."""
    calls: Any = gm.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    return [
        n
        for n in calls
        if n.args[0].meta["val"].device.type in devices
        and all(user.target is operator.getitem for user in n.users)
    ]


def _split(gm: GraphModule, node: Any) -> None:
    *operands, mask = node.args
    parts = [
        _part(gm, node, operands, [True, False, False]),
        _part(gm, node, operands, [False, *mask[1:]]),
    ]
    for user in list(node.users):
        user.args = (parts[0 if user.args[1] == 0 else 1], user.args[1])
    gm.graph.erase_node(node)


def _part(gm: GraphModule, node: Any, operands: list[Any], mask: list[bool]) -> Any:
    """Insert a call for some of the gradients of a node."""
    with gm.graph.inserting_before(node):
        part = gm.graph.call_function(node.target, (*operands, mask))
    gradients = zip(mask, node.meta["val"], strict=True)
    part.meta = {**node.meta, "val": tuple(g if is_kept else None for is_kept, g in gradients)}
    return part
