"""`row-major`: intermediate tensors whose rows are reduced are row-major.

Where an elementwise op reads a transposed tensor and a row-major one, as in a transformer whose
tokens are the pixels of a convolution, eager takes the order of dimensions from the first. Every
norm of a row would read and write such a tensor across memory, through all layers. The op's result
becomes row-major, and with it all that follows.
"""

from typing import Any, ClassVar

import torch
from attrs import field
from torch.fx import GraphModule, Node

from gyrator_ir.define import define, frozen
from gyrator_lowering.fx_passes.layouts.plan import LayoutPlan

aten = torch.ops.aten

_REDUCTIONS = (
    aten.native_layer_norm.default,
    aten._softmax.default,
    aten._log_softmax.default,
    aten.amax.default,
    aten.mean.dim,
    aten.sum.dim_IntList,
    aten.var_mean.correction,
)
"""Ops whose second argument is what they reduce."""


@frozen
class RowMajor:
    """Make results of elementwise ops row-major if their operands disagree and rows are reduced."""

    name: ClassVar[str] = "row-major"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed. It keeps a graph in which a
        tensor would have to be copied for it."""
        reduced = _reduced_rows(gm)
        first = next((n for n in reduced if _is_transposed(n.meta["val"])), None)
        if first is None:
            return False
        plan = _Plan(first.meta["val"].fake_mode, reduced=reduced)
        if not plan.covers(gm) or plan.copies or not plan.values:
            return False
        plan.apply(gm)
        return True


@define(eq=False)
class _Plan(LayoutPlan):
    reduced: set[Node] = field(kw_only=True)
    """Elementwise ops whose results' rows are reduced."""

    def starts(self, node: Node) -> bool:
        """Return whether a call's result may become row-major."""
        return node in self.reduced and _is_transposed(node.meta["val"])

    def result(self, node: Node, value: Any) -> Any:
        """Return a transposed result row-major, if an operand is."""
        if node not in self.reduced or not _is_transposed(value):
            return value
        if any(_is_like(self.of(a), value) for a in node.all_input_nodes):
            return value.contiguous()
        return value


def _reduced_rows(gm: GraphModule) -> set[Node]:
    """Return the elementwise ops whose results, or elementwise functions of these, are reduced
    along the last dimension."""
    reduced: set[Node] = set()
    for node in reversed(gm.graph.nodes):
        overload = isinstance(node.target, torch._ops.OpOverload)
        elementwise = overload and torch.Tag.pointwise in node.target.tags
        if elementwise and any(u in reduced or _reduces_rows(u, node) for u in node.users):
            reduced.add(node)
    return reduced


def _reduces_rows(call: Node, x: Node) -> bool:
    rank = x.meta["val"].dim() if isinstance(x.meta.get("val"), torch.Tensor) else 0
    if call.target not in _REDUCTIONS or len(call.args) < 2 or call.args[0] is not x:
        return False
    if call.target is aten.native_layer_norm.default:
        return True
    dims = call.args[1]
    last = [dims] if isinstance(dims, int) else dims
    return last in ([-1], [rank - 1])


def _is_fixed(value: Any) -> bool:
    """Return whether a tensor has static strides."""
    return isinstance(value, torch.Tensor) and all(isinstance(s, int) for s in value.stride())


def _is_transposed(value: Any) -> bool:
    """Return whether elements of a row are apart."""
    apart = _is_fixed(value) and value.dim() > 1 and value.stride(-1) > 1
    return apart and value.shape[-1] != 1


def _is_like(operand: Any, value: torch.Tensor) -> bool:
    """Return whether an operand has rows of the same length that are contiguous, and several."""
    if not _is_fixed(operand) or operand.dim() < 2 or operand.stride(-1) != 1:
        return False
    several = any(
        s != 0 and n != 1 for n, s in zip(operand.shape[:-1], operand.stride()[:-1], strict=True)
    )
    return several and operand.shape[-1] == value.shape[-1]
