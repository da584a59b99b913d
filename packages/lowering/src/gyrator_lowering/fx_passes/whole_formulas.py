"""`whole-formulas`: restores `addcdiv` and `addcmul`, which Dynamo decomposes.

For a call with a factor, Dynamo emits a quotient or product, its product with the factor, and a
sum, which round differently from eager's ops.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.insert import insert, replace

aten = torch.ops.aten

_WHOLE: Mapping[Any, Any] = MappingProxyType(
    {aten.div.Tensor: aten.addcdiv.default, aten.mul.Tensor: aten.addcmul.default}
)


@frozen
class WholeFormulas:
    """Replace the parts by the original ops."""

    name: ClassVar[str] = "whole-formulas"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in list(gm.graph.nodes):
            x, pair, factor = _parts(node)
            op = _WHOLE.get(getattr(pair, "target", None))
            if op is None or not isinstance(factor, int | float):
                continue
            if all(isinstance(a, Node) for a in pair.args):
                replace(gm, node, insert(gm, node, op, x, *pair.args, value=factor))
                changed = True
        if changed:
            gm.graph.eliminate_dead_code()
        return changed


def _parts(node: Node) -> tuple[Any, Any, Any]:
    """Return the term, the quotient or product of two tensors, and its factor."""
    if str(node.target) == "prims.fma.default":  # emitted for nothing else
        pair, factor, x = node.args
        return x, pair, factor
    if node.target is aten.add.Tensor and not node.kwargs and _written(node):
        x, product = node.args
        if isinstance(product, Node) and product.target is aten.mul.Tensor:
            pair, factor = product.args
            return x, pair, factor
    return None, None, None


def _written(node: Node) -> bool:
    """Return whether the user's source line contains `addcdiv`."""
    trace: str = node.meta.get("stack_trace", "")
    lines = [line for line in trace.splitlines() if line.strip(" ~^")]
    return bool(lines) and "addcdiv" in lines[-1]
