"""Graphs whose parameters are known: what follows from those alone is computed once.

`freeze` takes a graph apart: a `Folding`, which computes constants, and a graph that is given them.
"""

import operator

import torch
from torch.fx import Graph, GraphModule, Node

from gyrator_lowering.folding import ASSUMED, Folding, Step, encoded
from gyrator_lowering.fx_passes.insert import insert
from gyrator_lowering.fx_passes.known import known_nodes


def freeze(gm: GraphModule) -> tuple[Folding, GraphModule] | None:
    """Return what computes a graph's constants, and the graph that takes them after other inputs;
    None where there are none."""
    known = known_nodes(gm)
    _copy_results(gm, known)
    wanted = {n for n in known if n.all_input_nodes and _read(n, known)}
    if not wanted:
        return None
    placeholders = list(gm.graph.find_nodes(op="placeholder"))
    steps = _Steps({n: k for k, n in enumerate(placeholders)})
    results: dict[int, list[Node]] = {}
    for node in gm.graph.nodes:
        if node in wanted:
            results.setdefault(steps.of(node), []).append(node)
    kept = [k for k, n in enumerate(placeholders) if n not in known or _read(n, known)]
    graph = Graph()
    made: dict[Node, Node] = {}
    for k in kept:
        made[placeholders[k]] = graph.node_copy(placeholders[k])
    for number, nodes in results.items():
        constant = graph.placeholder(f"constant_{number}")
        constant.meta = dict(nodes[0].meta)
        made |= dict.fromkeys(nodes, constant)
    for node in gm.graph.nodes:
        # What is made of nothing, such as zeros, is as well made in kernels.
        again = not node.all_input_nodes and _read(node, known)
        if node.op != "placeholder" and (node not in known or again):
            made[node] = graph.node_copy(node, made.__getitem__)
    zeros = tuple(k for k in steps.given if placeholders[k].meta.get(ASSUMED))
    folding = Folding(tuple(steps.given), tuple(kept), tuple(steps.made), tuple(results), zeros)
    return folding, GraphModule(gm, graph)


def _read(node: Node, known: set[Node]) -> bool:
    return any(u not in known for u in node.users)


def _copy_results(gm: GraphModule, known: set[Node]) -> None:
    """Let results of the graph share no memory with constants, which callers may write to."""
    output = gm.graph.output_node()
    for node in list(output.all_input_nodes):
        base = node
        while base not in known and base.op == "call_function" and _is_view(base):
            base = base.all_input_nodes[0]
        if base in known and base.op != "placeholder":
            copy = insert(gm, output, torch.ops.aten.clone.default, node)
            copy.meta["val"] = node.meta["val"]
            output.replace_input_with(node, copy)


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    views = schema is not None and any(r.alias_info is not None for r in schema.returns)
    return bool(views and node.all_input_nodes)


class _Steps:
    """Steps so far, equal ones once."""

    def __init__(self, places: dict[Node, int]) -> None:
        self.places = places
        self.given: dict[int, None] = {}
        self.made: list[Step] = []
        self.numbers: dict[str, int] = {}
        self.nodes: dict[Node, int] = {}

    def of(self, node: Node) -> int:
        """Return the number of the step that computes a node."""
        if node not in self.nodes:
            for operand in node.all_input_nodes:
                if operand.op != "placeholder":
                    self.of(operand)
            item = node.target is operator.getitem
            op = "getitem" if item else str(node.target)
            args = encoded(node.args, self._named), encoded(dict(node.kwargs), self._named)
            step = Step(op, tuple(args[0]), args[1])
            number = self.numbers.setdefault(repr(step), len(self.made))
            if number == len(self.made):
                self.made.append(step)
            self.nodes[node] = number
        return self.nodes[node]

    def _named(self, node: Node) -> dict[str, int]:
        if node.op != "placeholder":
            return {"step": self.nodes[node]}
        self.given[self.places[node]] = None
        return {"input": self.places[node]}
