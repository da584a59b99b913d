"""`split-cross-entropy`: decomposes log softmax, the loss on it, and their gradients.

As single ops, they save the log probabilities of all classes for the backward pass. As pointwise
ops on the maximum and the sum of each row, these are never written: a loss reads one element of a
row, and the gradient recomputes them from the input of log softmax.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.insert import (
    Insert,
    compute_dtype,
    converted,
    insert,
    other_view,
    replace,
    size_parameters,
    sizes,
)
from gyrator_lowering.rules.loss import MEAN, NONE

aten = torch.ops.aten
CASTS = (torch.ops.prims.convert_element_type.default, aten._to_copy.default)
_SINGLE = "gyrator_single"
"""In a node's `meta`: each row has at most one nonzero element, selected from the row's `slope`."""


@frozen
class SplitCrossEntropy:
    """Decompose log softmax and the losses and gradients computed from it."""

    name: ClassVar[str] = "split-cross-entropy"
    least: int = 1 << 16
    """The minimum number of elements of log probabilities: smaller ones are computed in fewer
    kernels."""

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in list(gm.graph.nodes):
            if node.target is aten._log_softmax.default:
                changed |= _split(gm, node, self.least)
        return changed


def _split(gm: GraphModule, node: Any, least: int) -> bool:
    x, dim, _ = node.args
    fake = node.meta["val"]
    elements = fake.numel()
    if fake.dim() == 0 or (isinstance(elements, int) and elements < least):
        return False
    call = partial(insert, gm, node)
    dtype = compute_dtype(fake.dtype)
    value, total = shifted_rows(call, x, dim, dtype)
    value = call(aten.sub.Tensor, value, call(aten.log.default, total))
    value = converted(call, value, fake.dtype)
    if value.meta["val"].stride() != fake.stride():
        return False
    readers = _readers(node)
    replace(gm, node, value)
    for reader in readers:
        split = _READERS.get(reader.target)
        if split is not None:
            split(gm, reader)
    return True


def _readers(node: Node) -> list[Node]:
    """Return the readers of a node, looking through casts, in graph order."""
    readers: dict[Node, None] = {}
    left = [node]
    while left:
        for user in left.pop().users:
            if user.target in CASTS:
                left.append(user)
            else:
                readers[user] = None
    return [n for n in node.graph.nodes if n in readers]


def shifted_rows(call: Insert, x: Node, dim: int, dtype: torch.dtype) -> tuple[Node, Node]:
    """Insert `x - maximum` of each row, and the sum of its `exp`."""
    import torch._functorch.partitioners  # noqa: PLC0415  defines the op

    alias, op = other_view(call, x), torch.ops.prims.prepare_softmax_online.default
    row_statistics = call(op, converted(call, x, dtype), dim)
    top, total = (call(operator.getitem, row_statistics, k) for k in range(2))
    return call(aten.sub.Tensor, converted(call, alias, dtype), top), total


def _log_softmax_backward(gm: GraphModule, node: Any) -> None:
    grad, result, dim, dtype = node.args
    call = partial(insert, gm, node)
    wide = compute_dtype(result.meta["val"].dtype)
    total = _total(call, grad, dim, wide)
    grad = converted(call, grad, wide)
    share = call(aten.exp.default, converted(call, result, wide))
    share = call(aten.mul.Tensor, share, total)
    replace(gm, node, converted(call, call(aten.sub.Tensor, grad, share), dtype))


def _total(call: Insert, grad: Node, dim: int, wide: torch.dtype) -> Node:
    """Return the sum of each row of a gradient. That of a loss has one nonzero element in each
    row."""
    rounded = grad.target in CASTS
    unrounded = grad.args[0] if rounded else grad
    if isinstance(unrounded, Node) and unrounded.meta.get(_SINGLE) and dim in (1, -1):
        slope: Any = unrounded.args[1]
        if rounded:
            slope = converted(call, slope, grad.meta["val"].dtype)
        return converted(call, slope, wide)
    return call(aten.sum.dim_IntList, converted(call, grad, wide), [dim], True)


def _counted(call: Insert, target: Node, ignored: int) -> tuple[Node, Node]:
    """Return which rows count, and the class to read in each."""
    counted = call(aten.ne.Scalar, target, ignored)
    return counted, call(aten.where.ScalarOther, counted, target, 0)


def _loss(gm: GraphModule, node: Any) -> None:
    rows, target, weight, reduction, ignored = node.args
    fake, total_fake = node.meta["val"]
    if not _by_rows(rows, reduction):
        return
    call = partial(insert, gm, node)
    wide = compute_dtype(fake.dtype)

    def total(value: Node) -> Node:
        value = call(aten.where.ScalarOther, counted, converted(call, value, wide), 0)
        return call(aten.sum.dim_IntList, value, [0])

    counted, at = _counted(call, target, ignored)
    # This op checks the classes, as the original does.
    picked = call(aten.nll_loss_forward.default, rows, target, None, NONE, ignored)
    terms = converted(call, call(operator.getitem, picked, 0), wide)
    shares = counted
    if weight is not None:
        shares = converted(call, call(aten.index_select.default, weight, 0, at), wide)
        terms = call(aten.mul.Tensor, terms, shares)
    loss, share = total(terms), total(shares)
    if reduction == MEAN:
        loss = call(aten.div.Tensor, loss, share)
    results = converted(call, loss, fake.dtype), converted(call, share, total_fake.dtype)
    for user in list(node.users):
        replace(gm, user, results[user.args[1]])
    gm.graph.erase_node(node)


def _loss_backward(gm: GraphModule, node: Any) -> None:
    grad, rows, target, weight, reduction, ignored, total = node.args
    if not _by_rows(rows, reduction):
        return
    call = partial(insert, gm, node)
    fake = node.meta["val"]
    wide = compute_dtype(fake.dtype)
    counted, at = _counted(call, target, ignored)
    slope = call(aten.neg.default, converted(call, grad, wide))
    if reduction == MEAN:
        slope = call(aten.div.Tensor, slope, converted(call, total, wide))
    if weight is not None:
        share = call(aten.index_select.default, weight, 0, at)
        slope = call(aten.mul.Tensor, converted(call, share, wide), slope)
    slope = call(aten.unsqueeze.default, call(aten.where.ScalarOther, counted, slope, 0), 1)
    count = sizes(call, rows, size_parameters(gm))[1]
    classes = call(aten.arange.default, count, device=fake.device)
    hit = call(aten.eq.Tensor, call(aten.unsqueeze.default, at, 1), classes)
    gradient = call(aten.where.ScalarOther, hit, slope, 0)
    gradient.meta[_SINGLE] = True
    replace(gm, node, converted(call, gradient, fake.dtype))


def _by_rows(rows: Node, reduction: int) -> bool:
    return bool(rows.meta["val"].dim() == 2 and reduction != NONE)


_READERS: dict[Any, Callable[[GraphModule, Node], None]] = {
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.nll_loss_forward.default: _loss,
    aten.nll_loss_backward.default: _loss_backward,
}
