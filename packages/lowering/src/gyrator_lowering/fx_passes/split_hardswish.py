"""`split-hardswish`: hardswish becomes a product and a clamp.

PyTorch's partitioner would never recompute the single op, because it does not know that the op is
pointwise, and saves its result beside its argument, which the gradient reads.
"""

from functools import partial
from typing import ClassVar

from torch.fx import GraphModule

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.insert import compute_dtype, converted, insert, replace
from gyrator_lowering.fx_passes.split_cross_entropy import aten


@frozen
class SplitHardswish:
    """Decompose hardswish."""

    name: ClassVar[str] = "split-hardswish"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        nodes = gm.graph.find_nodes(op="call_function", target=aten.hardswish.default)
        for node in nodes:
            call, fake = partial(insert, gm, node), node.meta["val"]
            x = converted(call, node.args[0], compute_dtype(fake.dtype))
            gate = call(aten.clamp.default, call(aten.add.Tensor, x, 3), 0, 6)
            value = call(aten.div.Tensor, call(aten.mul.Tensor, x, gate), 6)
            replace(gm, node, converted(call, value, fake.dtype))
        return bool(nodes)
