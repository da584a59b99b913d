"""`split-softmax`: softmax whose result is read only in narrower floats becomes pointwise ops on
the maximum and the sum of each row.

The gradient of a single softmax op reads the unrounded result, which would have to be saved beside
the rounded one: three times the bytes of the input.
"""

from functools import partial
from typing import Any, ClassVar

from torch import Tensor
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.insert import compute_dtype, converted, insert, replace
from gyrator_lowering.fx_passes.split_cross_entropy import CASTS, aten, shifted_rows


@frozen
class SplitSoftmax:
    """Decompose softmax that is read only by its gradient and by casts to narrower dtypes."""

    name: ClassVar[str] = "split-softmax"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        softmaxes = [
            n for n in gm.graph.nodes if n.target is aten._softmax.default and _is_profitable(n)
        ]
        changed = [_split(gm, node) for node in softmaxes]
        return any(changed)


def _is_profitable(node: Node) -> bool:
    fake: Tensor = node.meta["val"]
    gradients = [n for n in node.users if n.target is aten._softmax_backward_data.default]
    others = [n for n in node.users if n not in gradients]
    narrowed = all(
        n.target in CASTS and n.meta["val"].dtype.itemsize < fake.dtype.itemsize for n in others
    )
    return bool(gradients and others and narrowed and fake.dim())


def _split(gm: GraphModule, node: Any) -> bool:
    x, dim, _ = node.args
    fake = node.meta["val"]
    call, dtype = partial(insert, gm, node), compute_dtype(fake.dtype)
    value, total = shifted_rows(call, x, dim, dtype)
    value = call(aten.exp.default, value)
    value = converted(call, call(aten.div.Tensor, value, total), fake.dtype)
    if value.meta["val"].stride() != fake.stride():
        return False
    gradients = [n for n in node.users if n.target is aten._softmax_backward_data.default]
    replace(gm, node, value)
    for gradient in gradients:
        _gradient(gm, gradient)
    return True


def _gradient(gm: GraphModule, node: Any) -> None:
    """Decompose the gradient too: a partitioner saves the operands of a single op."""
    grad, result, dim, dtype = node.args
    call = partial(insert, gm, node)
    wide = compute_dtype(result.meta["val"].dtype)
    grad, result = (converted(call, t, wide) for t in (grad, result))
    total = call(aten.sum.dim_IntList, call(aten.mul.Tensor, grad, result), [dim], True)
    value = call(aten.mul.Tensor, call(aten.sub.Tensor, grad, total), result)
    replace(gm, node, converted(call, value, dtype))
