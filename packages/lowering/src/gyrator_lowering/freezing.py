"""Graphs whose parameters are known: computations on parameters alone run once.

`freeze` splits such a graph into a `Folding`, which computes constants, and a graph that takes them
as inputs.
"""

import operator
from collections.abc import Mapping, Sequence

import torch
from torch.fx import Graph, GraphModule, Node

from gyrator_lowering.folding import ASSUMED, PACKED, Folding, Step, encoded
from gyrator_lowering.fx_passes.constants import constant_nodes
from gyrator_lowering.fx_passes.insert import insert


def freeze(gm: GraphModule, views: bool = True) -> tuple[Folding, GraphModule] | None:
    """Return the folding that computes a graph's constants, and the graph that takes these after
    its remaining inputs; None if there are no constants. Packed constants come last.

    Without `views`, each constant has memory of its own, and the graph creates the views of it.
    """
    frozen = constant_nodes(gm)
    if not views:
        for node in reversed(gm.graph.nodes):
            if node in frozen and _is_view(node) and _read(node, frozen):
                frozen.remove(node)
    _copy_results(gm, frozen)
    constants = {n for n in frozen if n.all_input_nodes and _read(n, frozen)}
    if not constants:
        return None
    placeholders = list(gm.graph.find_nodes(op="placeholder"))
    steps = _Steps({n: k for k, n in enumerate(placeholders)})
    results: dict[int, list[Node]] = {}
    for node in gm.graph.nodes:
        if node in constants:
            results.setdefault(steps.of(node), []).append(node)
    packed = {number for number, nodes in results.items() if nodes[0].meta.get(PACKED)}
    order = sorted(results, key=packed.__contains__)
    remaining = [k for k, n in enumerate(placeholders) if n not in frozen or _read(n, frozen)]
    zeros = tuple(k for k in steps.sources if placeholders[k].meta.get(ASSUMED))
    folding = Folding(
        tuple(steps.sources), tuple(remaining), tuple(steps.steps), tuple(order), zeros, len(packed)
    )
    inputs = [placeholders[k] for k in remaining]
    constants_in_order = {number: results[number] for number in order}
    return folding, GraphModule(gm, _unfrozen(gm, inputs, constants_in_order, frozen))


def _unfrozen(
    gm: GraphModule,
    inputs: Sequence[Node],
    constants: Mapping[int, Sequence[Node]],
    frozen: set[Node],
) -> Graph:
    """Return the graph of the nodes that are not frozen. It takes some of the inputs, and then the
    constants, each with its number and the nodes that have its value."""
    graph = Graph()
    copies = {node: graph.node_copy(node) for node in inputs}
    for number, nodes in constants.items():
        constant = graph.placeholder(f"constant_{number}")
        constant.meta = dict(nodes[0].meta)
        copies |= dict.fromkeys(nodes, constant)
    for node in gm.graph.nodes:
        # Values without inputs, such as zeros, are cheaper to create in kernels.
        recreated = not node.all_input_nodes and _read(node, frozen)
        if node.op != "placeholder" and (node not in frozen or recreated):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph


def _read(node: Node, frozen: set[Node]) -> bool:
    return any(u not in frozen for u in node.users)


def _copy_results(gm: GraphModule, frozen: set[Node]) -> None:
    """Copy results that alias constants, since callers may write to them. A view becomes a view of
    a copy, with the strides that it has in eager mode."""
    output = gm.graph.output_node()
    copies: dict[Node, Node] = {}

    def copy(node: Node) -> Node:
        if node not in copies:
            if _is_view(node):
                base = node.all_input_nodes[0]
                copied = copy(base)
                with gm.graph.inserting_before(output):
                    view = gm.graph.node_copy(node, lambda n: copied if n is base else n)
                copies[node] = view
            else:
                copies[node] = insert(gm, output, torch.ops.aten.clone.default, node)
                copies[node].meta["val"] = node.meta["val"]
        return copies[node]

    for node in list(output.all_input_nodes):
        base = node
        while base not in frozen and base.op == "call_function" and _is_view(base):
            base = base.all_input_nodes[0]
        if base in frozen and base.op != "placeholder":
            output.replace_input_with(node, copy(node))


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    views = schema is not None and any(r.alias_info is not None for r in schema.returns)
    return bool(views and node.all_input_nodes)


class _Steps:
    """The steps so far; equal steps are stored once."""

    def __init__(self, positions: dict[Node, int]) -> None:
        self.positions = positions
        self.sources: dict[int, None] = {}
        self.steps: list[Step] = []
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
            number = self.numbers.setdefault(repr(step), len(self.steps))
            if number == len(self.steps):
                self.steps.append(step)
            self.nodes[node] = number
        return self.nodes[node]

    def _named(self, node: Node) -> dict[str, int]:
        if node.op != "placeholder":
            return {"step": self.nodes[node]}
        self.sources[self.positions[node]] = None
        return {"input": self.positions[node]}
