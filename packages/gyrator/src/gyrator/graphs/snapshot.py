"""An FX graph as it is now, to restore it after passes that failed."""

from collections.abc import Mapping
from typing import Any, Self

from torch.fx import Graph, Node
from torch.fx.node import map_arg

from gyrator_ir.define import frozen


@frozen(eq=False)
class _Copy:
    """A node's contents, which passes may replace."""

    node: Node
    name: str
    target: Any
    args: Any
    kwargs: Any
    meta: Mapping[str, Any]


@frozen(eq=False)
class Snapshot:
    """The contents of a graph's nodes. Cheaper than a copy of the graph, which few need."""

    graph: Graph
    nodes: tuple[_Copy, ...]

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """Return a snapshot of a graph."""
        nodes = tuple(
            _Copy(n, n.name, n.target, n.args, n.kwargs, dict(n.meta)) for n in graph.nodes
        )
        return cls(graph, nodes)

    def restored(self) -> Graph:
        """Return a new graph with the recorded contents."""
        new = Graph()
        new.set_codegen(self.graph._codegen)
        copies: dict[Node, Node] = {}
        for old in self.nodes:
            args = map_arg(old.args, copies.__getitem__)
            kwargs = map_arg(old.kwargs, copies.__getitem__)
            node = old.node
            copies[node] = new.create_node(node.op, old.target, args, kwargs, old.name, node.type)
            copies[node].meta = dict(old.meta)
        return new
