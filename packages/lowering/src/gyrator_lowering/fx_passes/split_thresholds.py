"""`split-thresholds`: gradients of functions that are linear on both sides of a threshold become
selections by a condition.

The condition takes one byte for each element. A partitioner saves it instead of the input that it
was computed from, if nothing else needs that.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_ir.types import HOST
from gyrator_lowering.fx_passes.insert import Insert, insert, replace

aten = torch.ops.aten


@frozen
class SplitThresholds:
    """Decompose such gradients on devices for which saving conditions pays."""

    name: ClassVar[str] = "split-thresholds"
    devices: frozenset[str] = frozenset()

    @classmethod
    def of(cls, targets: Mapping[str, Target]) -> "SplitThresholds":
        """Return the pass for these targets."""
        return cls(frozenset(d for d, t in targets.items() if t.heuristics.saved_conditions))

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in list(gm.graph.nodes):
            split = _GRADIENTS.get(node.target)
            if split is None or node.meta["val"].device.type not in self.devices:
                continue
            value = split(partial(insert, gm, node), *node.args)
            same = value.meta["val"].dtype == node.meta["val"].dtype
            if same and value.meta["val"].stride() == node.meta["val"].stride():
                replace(gm, node, value)
                changed = True
        return changed


def _threshold(call: Insert, grad: Node, x: Node, threshold: Any) -> Node:
    return call(aten.where.ScalarSelf, call(aten.le.Scalar, x, threshold), 0, grad)


def _leaky(call: Insert, grad: Node, x: Node, slope: Any, _: bool) -> Node:
    return call(
        aten.where.self, call(aten.gt.Scalar, x, 0), grad, call(aten.mul.Tensor, grad, slope)
    )


def _clamped(call: Insert, grad: Node, x: Node, low: Any, high: Any) -> Node:
    if x.meta["val"].device.type == HOST:  # there, eager's gradient at NaN is 0
        inside = call(
            aten.bitwise_and.Tensor, call(aten.gt.Scalar, x, low), call(aten.lt.Scalar, x, high)
        )
        return call(aten.where.ScalarOther, inside, grad, 0)
    outside = call(
        aten.bitwise_or.Tensor, call(aten.le.Scalar, x, low), call(aten.ge.Scalar, x, high)
    )
    return call(aten.where.ScalarSelf, outside, 0, grad)


_GRADIENTS: Mapping[Any, Callable[..., Node]] = {
    aten.threshold_backward.default: _threshold,
    aten.leaky_relu_backward.default: _leaky,
    aten.hardtanh_backward.default: _clamped,
}
