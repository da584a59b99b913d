"""`fold-norms`: a batch norm with known statistics is folded into the product before it.

The product's weight is scaled, and its bias shifted, by numbers computed in `float64` and rounded
once. Results are as accurate as eager's, with other bits.
"""

from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.constants import constant_nodes
from gyrator_lowering.fx_passes.insert import insert

aten = torch.ops.aten

_NORM = aten._native_batch_norm_legit_no_training.default
_CONVOLUTION, _PRODUCTS = aten.convolution.default, (aten.mm.default, aten.addmm.default)
_DTYPES = (torch.float32, torch.float64)


@frozen
class FoldNorms:
    """Fold batch norms into the convolutions and linear layers before them."""

    name: ClassVar[str] = "fold-norms"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        norms = [n for n in gm.graph.nodes if n.target is _NORM]
        constants = constant_nodes(gm) if norms else set()
        changed = [_fold(gm, norm, constants) for norm in norms]
        return any(changed)


def _fold(gm: GraphModule, norm: Any, constants: set[Node]) -> bool:
    x, gain, shift, mean, variance, _, eps = norm.args
    weights = _weights(x)
    if weights is None or len(x.users) != 1 or any(u.args[1] != 0 for u in norm.users):
        return False
    weight, bias = weights
    parameters = [n for n in (weight, bias, gain, shift, mean, variance) if n is not None]
    if any(n not in constants or n.meta["val"].dtype not in _DTYPES for n in parameters):
        return False
    dtype = weight.meta["val"].dtype
    if x.meta["val"].dtype != dtype:
        return False

    def call(op: Any, *args: Any) -> Node:
        return insert(gm, x, op, *args)

    def wide(node: Node) -> Node:
        return call(torch.ops.prims.convert_element_type.default, node, torch.float64)

    def narrow(node: Node) -> Node:
        return call(torch.ops.prims.convert_element_type.default, node, dtype)

    scale = call(aten.rsqrt.default, call(aten.add.Tensor, wide(variance), eps))
    if gain is not None:
        scale = call(aten.mul.Tensor, scale, wide(gain))
    offset = call(aten.neg.default, wide(mean))
    if bias is not None:
        offset = call(aten.add.Tensor, offset, wide(bias))
    offset = call(aten.mul.Tensor, offset, scale)
    if shift is not None:
        offset = call(aten.add.Tensor, offset, wide(shift))
    new_bias = narrow(offset)
    if x.target is _CONVOLUTION:
        scaled = call(aten.mul.Tensor, wide(weight), _expanded(call, x, scale))
        new = call(_CONVOLUTION, x.args[0], narrow(scaled), new_bias, *x.args[3:])
    else:
        scaled = call(aten.mul.Tensor, wide(weight), scale)
        new = call(aten.addmm.default, new_bias, x.args[-2], narrow(scaled))
    new.meta["val"] = x.meta["val"]
    for item in list(norm.users):
        item.replace_all_uses_with(new)
        gm.graph.erase_node(item)
    gm.graph.erase_node(norm)
    gm.graph.erase_node(x)
    return True


def _weights(x: Any) -> tuple[Any, Any] | None:
    """Return the weight and the bias of a convolution, or of a product without scale factors."""
    if x.target is _CONVOLUTION:
        return x.args[1], x.args[2]
    if x.target not in _PRODUCTS or any(factor != 1 for factor in x.kwargs.values()):
        return None
    if x.target is aten.mm.default:
        return x.args[1], None
    bias = x.args[0]
    fits = bias.meta["val"].shape == x.meta["val"].shape[1:]
    return (x.args[2], bias) if fits else None


def _expanded(call: Any, convolution: Any, scale: Node) -> Node:
    """Return the scale of each output channel, in a shape that broadcasts to the weight."""
    shape = convolution.args[1].meta["val"].shape
    transposed, groups = convolution.args[6], convolution.args[8]
    window = [1] * (len(shape) - 2)
    if not transposed:
        view: Node = call(aten.view.default, scale, [shape[0], 1, *window])
        return view
    grouped = call(aten.view.default, scale, [groups, 1, shape[1], *window])
    inputs = shape[0] // groups
    expanded = call(aten.expand.default, grouped, [groups, inputs, shape[1], *window])
    flat: Node = call(aten.reshape.default, expanded, [shape[0], shape[1], *window])
    return flat
