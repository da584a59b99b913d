"""`split-norms`: the results of norms become pointwise ops on their statistics.

A partitioner recomputes pointwise ops in the backward pass if that is cheaper than saving their
results, but can only save the result of a norm op. Its gradient needs the input and the statistics
anyway, so that nothing else has to be saved.
"""

import operator
from collections.abc import Callable, Mapping
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

aten = torch.ops.aten
_PRODUCTS = frozenset(
    {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default,
     aten.convolution.default, aten.convolution_backward.default}
)  # fmt: skip
_SAME = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.t.default, aten.permute.default,
     aten.transpose.int, aten.expand.default, aten._to_copy.default, aten.clone.default,
     torch.ops.prims.convert_element_type.default}
)  # fmt: skip
"""Ops that return their argument in another shape, layout or dtype."""

_View = Callable[[Insert, Node], Node]


@frozen
class _Norm:
    """A call of a norm: its input, its parameters, and the views in which these broadcast."""

    x: Node
    weight: Node | None
    bias: Node | None
    statistic: _View
    parameter: _View
    groups: int | None = None
    """The number of groups that the channels are split into, if they are."""
    centred: bool = True
    """The statistics are mean and 1/sqrt(variance + eps); otherwise only the latter."""


@frozen
class SplitNorms:
    """Decompose norms whose results are read by pointwise gradients.

    Norms whose statistics are rounded below the compute dtype are kept, and so are norms whose
    results are read by products: these results are saved anyway.
    """

    name: ClassVar[str] = "split-norms"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        norms = [n for n in gm.graph.nodes if n.target in _NORMS]
        backward = _backward(gm) if norms else set()
        parameters = size_parameters(gm) if norms else {}
        changed = False
        for node in norms:
            norm = _NORMS[node.target](*node.args)
            results = [n for n in node.users if n.args[1] == 0]
            if norm is not None and len(results) == 1 and _is_profitable(results[0], backward):
                changed |= _split(gm, node, results[0], norm, parameters)
        return changed


def _backward(gm: GraphModule) -> set[Node]:
    """Return the nodes that depend on gradients of results."""
    backward: set[Node] = set()
    for node in gm.graph.nodes:
        is_tangent = node.op == "placeholder" and node.name.startswith("tangents")
        if is_tangent or not backward.isdisjoint(node.all_input_nodes):
            backward.add(node)
    return backward


def _is_profitable(result: Node, backward: set[Node]) -> bool:
    """Return whether a pointwise gradient reads a result or a function of one element of it, such
    as its activation, and no product does."""
    is_read_backward, left = False, [result]
    activations: list[Node] = []
    while left:
        for reader in left.pop().users:
            if reader.target in _PRODUCTS:
                return False
            if reader in backward:
                is_read_backward = True
            elif reader.target in _SAME:
                left.append(reader)
            elif _is_activation(reader):
                activations.append(reader)
    return is_read_backward or any(_is_profitable(a, backward) for a in activations)


def _is_activation(node: Node) -> bool:
    """Return whether a node is a pointwise function of one tensor that is not a result of the
    graph, which lives anyway."""
    is_pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    is_result = any(user.op == "output" for user in node.users)
    return is_pointwise and len(node.all_input_nodes) == 1 and not is_result


def _split(
    gm: GraphModule, node: Node, result: Node, norm: _Norm, parameters: Mapping[Any, Node]
) -> bool:
    fake = node.meta["val"][0]
    statistics = node.meta["val"][1 : 3 if norm.centred else 2]
    dtype = compute_dtype(fake.dtype)
    rounded = any(s.dtype != dtype for s in statistics)
    if rounded or any(s == 0 for s in fake.shape if isinstance(s, int)):
        return False
    call = partial(insert, gm, result)

    def wide(value: Node) -> Node:
        return converted(call, value, dtype)

    value = wide(_source(partial(insert, gm, node), norm, parameters))
    row_statistics = [_result(gm, node, result, k + 1) for k in range(len(statistics))]
    at = [norm.statistic(call, s) for s in row_statistics]
    if norm.centred:
        value = call(aten.sub.Tensor, value, at[0])
    value = call(aten.mul.Tensor, value, at[-1])
    for op, parameter in ((aten.mul.Tensor, norm.weight), (aten.add.Tensor, norm.bias)):
        if parameter is not None:
            value = call(op, value, norm.parameter(call, wide(parameter)))
    value = converted(call, value, fake.dtype)
    if value.meta["val"].dim() != fake.dim():
        value = call(aten.view.default, value, sizes(call, norm.x, parameters))
    if value.meta["val"].stride() != fake.stride():
        return False
    replace(gm, result, value)
    return True


def _source(call: Insert, norm: _Norm, parameters: Mapping[Any, Node]) -> Node:
    """Return another view of the input's memory, see `other_view`."""
    if norm.groups is None:
        return other_view(call, norm.x)
    batch, _, *space = sizes(call, norm.x, parameters)
    return call(aten.view.default, norm.x, [batch, norm.groups, -1, *space])


def _result(gm: GraphModule, node: Node, before: Node, number: int) -> Node:
    """Return a result of a call, moved before `before`."""
    for user in node.users:
        if user.args[1] == number:
            before.prepend(user)
            return user
    return insert(gm, before, operator.getitem, node, number)


def _identity(_: Insert, value: Node) -> Node:
    return value


def _by_channel(dims: int, call: Insert, value: Node) -> Node:
    """`[C]`: one value for all positions of a channel."""
    return call(aten.view.default, value, [-1, *[1] * (dims - 2)])


def _layer(x: Node, _shape: Any, weight: Node | None, bias: Node | None, *_: Any) -> _Norm:
    return _Norm(x, weight, bias, _identity, _identity)


def _rms(x: Node, _shape: Any, weight: Node | None, *_: Any) -> _Norm:
    return _Norm(x, weight, None, _identity, _identity, centred=False)


def _group(
    x: Node, weight: Node | None, bias: Node | None, _n: Any, _c: Any, _hw: Any, groups: int,
    *_: Any,
) -> _Norm:  # fmt: skip
    """Channels are split into groups and the channels of each."""
    ones = [1] * (x.meta["val"].dim() - 2)

    def statistic(call: Insert, value: Node) -> Node:
        return call(aten.view.default, value, [-1, groups, 1, *ones])

    def parameter(call: Insert, value: Node) -> Node:
        return call(aten.view.default, value, [groups, -1, *ones])

    return _Norm(x, weight, bias, statistic, parameter, groups)


def _batch(training: int | None = None) -> Callable[..., _Norm | None]:
    """Return a reader of batch norms; argument number `training`, if any, says whether they
    train."""

    def read(x: Node, weight: Node | None, bias: Node | None, *others: Any) -> _Norm | None:
        if training is not None and not others[training - 3]:
            return None
        by_channel = partial(_by_channel, x.meta["val"].dim())
        return _Norm(x, weight, bias, by_channel, by_channel)

    return read


_NORMS: dict[Any, Callable[..., _Norm | None]] = {
    aten.native_layer_norm.default: _layer,
    aten._fused_rms_norm.default: _rms,
    aten.native_group_norm.default: _group,
    aten._native_batch_norm_legit_functional.default: _batch(training=5),
    aten._native_batch_norm_legit.no_stats: _batch(training=3),
    aten._batch_norm_with_update_functional.default: _batch(),
}
