"""Parts of a graph that are compiled alone, to be measured: products with what is fused to them.

A product by itself says little of how quick a kernel is that also does what follows: that may be
free in the kernel, or in the one that the library's result goes to. So products are measured with
everything between them and the next ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch.fx import Graph, GraphModule, Node

_MOST = 32
"""Nodes after products that are measured with them."""
_NAMESPACES = ("aten", "prims")


@frozen(eq=False)
class Region:
    """Products that share what follows them.

    `nodes` are in the graph's order, the products included; `inputs` are what they read of others,
    `results` those that others read.
    """

    products: tuple[Node, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]

    def signature(self) -> str:
        """Return text that two regions share if they compute the same on tensors of one form."""
        names = {n: f"given{k}" for k, n in enumerate(self.inputs)}
        names |= {n: f"made{k}" for k, n in enumerate(self.nodes)}

        def shown(value: Any) -> Any:
            if isinstance(value, Node):
                return names[value]
            if isinstance(value, (list, tuple)):
                return [shown(v) for v in value]
            return value

        lines = [f"{names[n]} = {form(n.meta['val'])}" for n in self.inputs]
        for n in self.nodes:
            kwargs = {k: shown(v) for k, v in n.kwargs.items()}
            lines.append(f"{names[n]} = {n.target} {shown(n.args)} {kwargs}")
        return "\n".join((*lines, repr(shown(self.results))))

    def alone(self) -> GraphModule:
        """Return a graph of these nodes; its inputs are the region's, in order."""
        graph = Graph()
        made: dict[Node, Node] = {}
        for k, given in enumerate(self.inputs):
            made[given] = graph.placeholder(f"given{k}")
            made[given].meta = dict(given.meta)
        for n in self.nodes:
            made[n] = graph.node_copy(n, made.__getitem__)
        graph.output(tuple(made[n] for n in self.results))
        return GraphModule(torch.nn.Module(), graph)


def form(value: Any) -> str:
    """Return text that tells a tensor's form from others."""
    return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device}"


def regions(
    graph: Graph, measured: Callable[[Node], bool], dense: Callable[[Node], bool]
) -> tuple[Region, ...]:
    """Return the regions of a graph, each product that is to be `measured` in one of them.

    What follows a product belongs to its region if it depends on no `dense` node that the product
    leads to, nor on one that is as far from the graph's inputs without being part of a region.
    """
    depth: dict[Node, int] = {}
    groups: dict[Node, _Group] = {}
    for n in graph.nodes:
        before = max((depth[i] for i in n.all_input_nodes), default=0)
        depth[n] = before + dense(n)
        if measured(n):
            groups[n] = _Group([n], [n])
        elif depth[n] == before and _follows(n):
            near = [groups[i] for i in n.all_input_nodes if i in groups and depth[i] == before]
            distinct = list({id(g): g for g in near}.values())
            short = sum(len(g.nodes) for g in distinct) < _MOST
            if distinct and (short or n.target is operator.getitem):
                groups[n] = _joined(distinct, groups)
                groups[n].nodes.append(n)
    order = {n: k for k, n in enumerate(graph.nodes)}
    found = {id(g): g for g in groups.values()}.values()
    return tuple(_region(sorted(g.nodes, key=order.__getitem__), g.products) for g in found)


@frozen(eq=False)
class _Group:
    products: list[Node]
    nodes: list[Node]


def _joined(several: Sequence[_Group], groups: dict[Node, _Group]) -> _Group:
    first = several[0]
    for other in several[1:]:
        first.products.extend(other.products)
        first.nodes.extend(other.nodes)
        groups.update(dict.fromkeys(other.nodes, first))
    return first


def _region(nodes: Sequence[Node], products: Sequence[Node]) -> Region:
    inside = set(nodes)
    inputs = dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside)
    results = [n for n in nodes if any(u not in inside for u in n.users) and _is_tensor(n)]
    return Region(tuple(products), tuple(nodes), tuple(inputs), tuple(results))


def _follows(node: Node) -> bool:
    """Whether a node may be computed with a product: a pure function with sizes that are known."""
    if node.target is operator.getitem:
        return _is_tensor(node)
    op = node.target
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
        return False
    pure = op.namespace in _NAMESPACES and not op._schema.is_mutable
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    if not pure or seeded:
        return False
    val = node.meta.get("val")
    made = val if isinstance(val, (tuple, list)) else (val,)
    return all(map(_is_sized, made)) and all(map(_is_tensor, node.all_input_nodes))


def _is_tensor(node: Node) -> bool:
    return _is_sized(node.meta.get("val"))


def _is_sized(val: Any) -> bool:
    """Whether a value is a tensor of constant sizes."""
    if not isinstance(val, torch.Tensor):
        return False
    return all(isinstance(n, int) for n in (*val.shape, *val.stride()))
