"""Analysis of what is computed from a matrix row by row, and of reductions over its rows."""

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from attrs import field
from torch.fx import GraphModule, Node

from gyrator_ir.define import define
from gyrator_lowering.rules.loss import NONE

aten, prims = torch.ops.aten, torch.ops.prims


class Kind(Enum):
    """How the results of several chunks of rows are combined."""

    ROWS = "rows"
    """They are concatenated."""
    SUM = "sum"
    """They are added."""


@define(eq=False)
class Region:
    """The nodes computed row by row from a product."""

    root: Node
    lead: dict[Node, int] = field(factory=dict)
    """For each node, in order, the number of leading dimensions that are rows. Tuples count as
    their first item; 0 stands for a total that does not depend on any row."""
    transposed: dict[Node, Node] = field(factory=dict)
    """Transposed matrices, and their sources."""
    sinks: dict[Node, Kind] = field(factory=dict)
    """Products and sums over nodes of the region, where it ends."""
    exits: dict[Node, None] = field(factory=dict)
    """Nodes with few elements in a row that have users outside."""
    first: Node | None = None
    """The first node outside that reads the region or a sink."""
    _after: set[Node] = field(factory=set)

    def add(self, node: Any) -> bool:
        """Add a node to the region, or record what it reads from it; return whether that is
        possible."""
        inside = [n for n in node.all_input_nodes if n in self.lead or n in self.transposed]
        late = any(n in self._after for n in node.all_input_nodes)
        if inside and not late and node.op == "call_function":
            make = _SINKS.get(node.target)
            if make is not None and (sink := make(self, node)) is not None:
                self.sinks[node] = sink
                self._after.add(node)
                return True
            if node.target in _TRANSPOSES and self._transpose(node, inside[0]):
                return True
            lead = None if self.transposed.keys() & set(inside) else _lead(self, node)
            if lead is not None:
                self.lead[node] = lead
                return True
        if inside or late:
            self._after.add(node)
            self.first = self.first or node
        self.exits.update(dict.fromkeys(inside))
        return all(n in self.lead and self._is_narrow(n) for n in inside)

    def _transpose(self, node: Node, source: Node) -> bool:
        if source in self.transposed:
            self.lead[node] = self.lead[self.transposed[source]]
            return bool(node.meta["val"].dim() == 2)
        if self.lead[source] == 1 and source.meta["val"].dim() == 2:
            self.transposed[node] = source
            return True
        return False

    def _is_narrow(self, node: Node) -> bool:
        fake, lead = node.meta["val"], self.lead[node]
        if not isinstance(fake, torch.Tensor) or not 0 < lead <= fake.dim():
            return False
        loose = sum(not isinstance(s, int) for s in fake.shape[:lead])
        return all(s == 1 for s in fake.shape[lead:]) and (lead == 1 or loose < 2)


def region_of(gm: GraphModule, root: Node) -> Region | None:
    """Return the region computed row by row from a product; None if it has other uses."""
    region = Region(root, {root: 1})
    nodes = iter(gm.graph.nodes)
    while next(nodes) is not root:
        pass
    for node in nodes:
        if not region.add(node):
            return None
    return region if region.first is not None else None


def tangent_dependences(gm: GraphModule) -> Mapping[Node, frozenset[Node]]:
    """Return the gradients of results that each node depends on."""
    dependences: dict[Node, frozenset[Node]] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" and "tangents" in str(node.target):
            dependences[node] = frozenset((node,))
        else:
            dependences[node] = frozenset().union(*(dependences[n] for n in node.all_input_nodes))
    return dependences


def linear(node: Any, of: Callable[[Any], bool]) -> bool:
    """Return whether a node is linear in the arguments for which `of` is true, taken together."""
    positions = [k for k, a in enumerate(node.args) if isinstance(a, Node) and of(a)]
    if len(positions) < sum(map(of, node.all_input_nodes)):
        return False
    if node.target in _BILINEAR:
        return len(positions) == 1
    if node.target in (aten.add.Tensor, aten.sub.Tensor):
        return positions == [0, 1]
    if node.target is aten.where.self:
        return positions == [1, 2]
    if node.target in (aten.where.ScalarOther, aten.masked_fill.Scalar):
        position, other = (1, 2) if node.target is aten.where.ScalarOther else (0, 2)
        return positions == [position] and node.args[other] == 0
    return positions == [0] and node.target in _LINEAR


def same_size(a: Any, b: Any) -> bool:
    """Return whether two sizes are statically equal."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(a.node.expr == b.node.expr)


def shape_of(node: Node) -> Sequence[Any]:
    """Return the shape of a node, or of its first result if it has several."""
    fake = node.meta["val"]
    return (fake if isinstance(fake, torch.Tensor) else fake[0]).shape


def is_pointwise(node: Any) -> bool:
    """Return whether each element of a result depends only on the operands' elements at that
    index."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or node.target in _POINTWISE


def _lead(region: Region, node: Any) -> int | None:
    """Return the number of leading dimensions of a node that are rows, if it is computed row by
    row."""
    inside = [n for n in node.all_input_nodes if n in region.lead]
    leads = {region.lead[n] for n in inside}
    if node.target is operator.getitem:
        is_total = inside[0].target is aten.nll_loss_forward.default and node.args[1] == 1
        return 0 if is_total else leads.pop()
    if node.target is aten.nll_loss_backward.default:
        return _loss_backward(region, node)
    if len(leads) != 1:
        return None
    lead = leads.pop()
    rule = _within if str(node.target) == _STATISTICS else _ROWWISE.get(node.target)
    if rule is None and is_pointwise(node):
        rule = _pointwise
    result = None if rule is None else rule(region, node, lead)
    fake = node.meta["val"]
    if isinstance(fake, torch.Tensor) and not all(isinstance(s, int) for s in fake.shape[lead:]):
        return None
    return result


def _pointwise(region: Region, node: Any, lead: int) -> int | None:
    out = shape_of(node)
    for n in node.all_input_nodes:
        shape = shape_of(n)
        if n in region.lead:
            if len(shape) != len(out) or not all(map(same_size, shape[:lead], out[:lead])):
                return None
        elif not isinstance(n.meta["val"], torch.Tensor):
            return None
        elif len(shape) > len(out) - lead:
            rows = shape[: len(shape) - len(out) + lead]
            is_aligned = len(rows) == lead and all(map(same_size, rows, out))
            if not is_aligned and not all(same_size(s, 1) for s in rows):
                return None
    return lead


def _view(_: Region, node: Any, lead: int) -> int | None:
    rest = shape_of(node.args[0])[lead:]
    out = shape_of(node)
    position = len(out) - len(rest)
    return position if position > 0 and all(map(same_size, out[position:], rest)) else None


def _within(_: Region, node: Any, lead: int) -> int | None:
    """The rule for ops over dimensions that are not rows."""
    dims = len(shape_of(node.args[0]))
    more = 1 if node.target is aten.unsqueeze.default else 0
    return lead if all(d % (dims + more) >= lead for d in dims_of(node)) else None


def dims_of(node: Any) -> list[int]:
    """Return the dimensions over which an op works, as it has them."""
    dims: Any = node.args[_DIMS.get(node.target, 1)]
    return list(dims) if isinstance(dims, (list, tuple)) else [dims]


def _expand(_: Region, node: Any, lead: int) -> int | None:
    before, out = shape_of(node.args[0]), shape_of(node)
    return lead if len(before) == len(out) and all(map(same_size, before[:lead], out)) else None


def _loss(region: Region, node: Any, lead: int) -> int | None:
    x, target, weight, reduction, _ = node.args
    outside = target not in region.lead and weight not in region.lead
    return lead if lead == 1 and reduction == NONE and outside and x in region.lead else None


def _loss_backward(region: Region, node: Any) -> int | None:
    _, x, target, weight, reduction, _, _ = node.args
    outside = target not in region.lead and weight not in region.lead
    return 1 if region.lead.get(x) == 1 and reduction == NONE and outside else None


def _gather(region: Region, node: Any, lead: int) -> int | None:
    x, dim, index = node.args
    return lead if x in region.lead and lead == 1 == dim % 2 and len(shape_of(index)) == 2 else None


def _both(region: Region, node: Any, lead: int) -> int | None:
    if not all(n in region.lead for n in node.all_input_nodes):
        return None
    return _within(region, node, lead)


def _product(region: Region, node: Any) -> Kind | None:
    x, y = node.args[-2:]
    if x in region.transposed and y not in region.lead and y not in region.transposed:
        return Kind.SUM
    if x in region.lead and y not in region.lead and y not in region.transposed:
        return Kind.ROWS
    plain = x not in region.lead and x not in region.transposed
    return Kind.SUM if y in region.lead and plain else None


def _sum(region: Region, node: Any) -> Kind | None:
    x: Any = node.args[0]
    lead, shape = region.lead.get(x, 0), shape_of(x)
    wide = any(s != 1 for s in shape[lead:] if isinstance(s, int))
    over = sorted(d % len(shape) for d in node.args[1] or ())
    return Kind.SUM if wide and lead == 1 and over == [0] else None


SAME = frozenset({aten.alias.default, aten.detach.default, aten.clone.default})
"""Ops that return their argument unchanged."""
CASTS = frozenset({aten._to_copy.default, prims.convert_element_type.default})
_POINTWISE = SAME | CASTS | {aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar}
"""Pointwise ops without torch's tag."""
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
_TRANSPOSES = frozenset({aten.t.default, aten.permute.default, aten.transpose.int})
_SINKS = {aten.mm.default: _product, aten.sum.dim_IntList: _sum}
_STATISTICS = "prims.prepare_softmax_online.default"
"""This op is defined when it is first called."""
_DIMS = {aten._log_softmax_backward_data.default: 2}
_ROWWISE: Mapping[Any, Callable[[Region, Node, int], int | None]] = {
    **dict.fromkeys(VIEWS, _view),
    aten.expand.default: _expand,
    **dict.fromkeys(
        (
            aten.unsqueeze.default, aten.squeeze.dim, aten.sum.dim_IntList, aten.mean.dim,
            aten.amax.default, aten.logsumexp.default, aten._log_softmax.default,
        ),
        _within,
    ),
    aten._log_softmax_backward_data.default: _both,
    aten.nll_loss_forward.default: _loss,
    aten.gather.default: _gather,
}  # fmt: skip
_BILINEAR = frozenset({aten.mul.Tensor, aten.mul.Scalar, aten.mm.default})
_LINEAR = frozenset(
    {
        *SAME, *CASTS, *VIEWS, *_TRANSPOSES,
        aten.sum.dim_IntList, aten.expand.default, aten.unsqueeze.default,
        aten.squeeze.dim, aten.neg.default, aten.div.Tensor, aten.div.Scalar,
        aten._log_softmax_backward_data.default, aten.nll_loss_backward.default,
        aten.tanh_backward.default, aten.slice.Tensor, aten.select.int,
    }
)  # fmt: skip
"""Ops that are linear in their first argument."""
