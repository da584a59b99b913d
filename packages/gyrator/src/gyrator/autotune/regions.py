"""Parts of a graph that are compiled separately to be measured: products with the ops fused to
them.

Measuring a product alone does not predict its speed in a kernel with an epilogue: the ops after it
may be free in that kernel, or in the kernel that reads the library's result. So products are
measured with all ops between them and the next products.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from gyrator_ir.define import frozen

_MAX_NODES = 32
"""Maximum number of nodes measured with products."""
_NAMESPACES = ("aten", "prims")


@frozen(eq=False)
class Region:
    """Products that share the ops after them.

    `nodes` are in the graph's order and include the products; `inputs` are the outside nodes that
    they read, `results` the nodes that outside nodes read.
    """

    products: tuple[Node, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]

    @property
    def device(self) -> torch.device:
        """The device of the results."""
        device: torch.device = (*self.results, *self.inputs)[0].meta["val"].device
        return device

    def signature(self) -> str:
        """Return text that is equal for two regions that compute the same on tensors of the same
        layouts."""
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

    def graph_module(self) -> GraphModule:
        """Return a graph of these nodes; its inputs are the region's, in order."""
        graph = Graph()
        copies: dict[Node, Node] = {}
        for k, node in enumerate(self.inputs):
            copies[node] = graph.placeholder(f"given{k}")
            copies[node].meta = dict(node.meta)
        for n in self.nodes:
            copies[n] = graph.node_copy(n, copies.__getitem__)
        graph.output(tuple(copies[n] for n in self.results))
        return GraphModule(torch.nn.Module(), graph)


def form(value: Any) -> str:
    """Return text that identifies the layout of a tensor."""
    return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device}"


def regions(
    graph: Graph, measured: Callable[[Node], bool], dense: Callable[[Node], bool]
) -> tuple[Region, ...]:
    """Return the regions of a graph, such that each product to be `measured` is in one of them.

    A node after a product belongs to its region if it depends on no later `dense` node, nor on a
    dense node at the same depth that is not part of a region.
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
            short = sum(len(g.nodes) for g in distinct) < _MAX_NODES
            if distinct and (short or n.target is operator.getitem):
                groups[n] = _joined(distinct, groups)
                groups[n].nodes.append(n)
    order = {n: k for k, n in enumerate(graph.nodes)}
    distinct_groups = {id(g): g for g in groups.values()}.values()
    return tuple(
        region_of(sorted(g.nodes, key=order.__getitem__), g.products) for g in distinct_groups
    )


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


def region_of(nodes: Sequence[Node], products: Sequence[Node]) -> Region:
    """Return the region that consists of these nodes, which are in the graph's order."""
    inside = set(nodes)
    inputs = dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside)
    results = [n for n in nodes if any(u not in inside for u in n.users) and _is_tensor(n)]
    return Region(tuple(products), tuple(nodes), tuple(inputs), tuple(results))


def _follows(node: Node) -> bool:
    """Return whether a node may be fused with a product: a pure function with static sizes."""
    return _is_tensor(node) if node.target is operator.getitem else is_pure(node)


def is_pure(node: Node) -> bool:
    """Return whether a node is an op of ATen without side effects, on and of tensors of constant
    sizes."""
    op = node.target
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
        return False
    pure = op.namespace in _NAMESPACES and not op._schema.is_mutable
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    if not pure or seeded:
        return False
    val = node.meta.get("val")
    values = val if isinstance(val, (tuple, list)) else (val,)
    return all(map(_is_sized, values)) and all(map(_is_tensor, node.all_input_nodes))


def _is_tensor(node: Node) -> bool:
    return _is_sized(node.meta.get("val"))


def _is_sized(val: Any) -> bool:
    """Return whether a value is a tensor of constant sizes."""
    if not isinstance(val, torch.Tensor):
        return False
    return all(isinstance(n, int) for n in (*val.shape, *val.stride()))
