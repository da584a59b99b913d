"""Splitting a graph into pieces: PyTorch runs nodes that cannot be compiled, between programs for
the rest.

Each node gets a level, even if it is compiled and odd if PyTorch runs it: the lowest level of that
parity that is not below the levels of its operands. All nodes of a level form one piece, so the
number of pieces is bounded by the number of changes between the two kinds along any path. Views and
sizes are free and have no level: every piece that needs one recomputes it, so that the inputs of a
piece share memory only if the caller's tensors do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from gyrator.graphs.compiled import Boxed, boxed
from gyrator.graphs.fallback import eager_graph
from gyrator.reports.records import ExternRecord
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic
from gyrator_lowering.builder.program import each
from gyrator_lowering.torch_bridge.graphs import graph_results
from gyrator_lowering.torch_bridge.origins import innermost, module_path
from gyrator_lowering.torch_bridge.schema import info_of, writes
from gyrator_lowering.torch_bridge.symbols import expression_of
from gyrator_runtime.host.outside import copy_with_strides


@frozen(eq=False)
class Piece:
    """A part of a graph, with the nodes of the original graph that are its arguments and
    results."""

    module: GraphModule
    compiled: bool
    arguments: tuple[Node, ...]
    results: tuple[Node, ...]


def cut(gm: GraphModule, refused: Collection[str]) -> tuple[Piece, ...]:
    """Split a graph into pieces, in the order in which they run.

    Args:
        gm: an ATen graph with fake tensors.
        refused: names of the nodes that PyTorch must run.
    """
    return _Cut(gm, _refused(gm, refused)).pieces()


def glue(gm: GraphModule, pieces: Sequence[Piece], calls: Sequence[Boxed]) -> Boxed:
    """Return a callable for the whole graph that runs its pieces in order, each by one of `calls`.

    Values that no later piece uses are freed.
    """
    slots = {n: k for k, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
    inputs = len(slots)
    for piece in pieces:
        for node in piece.results:
            slots.setdefault(node, len(slots))
    outputs = [_returned(gm, item, slots) for item in graph_results(gm)]
    live = {slot for slot, _ in outputs}
    last = {slots[node]: k for k, piece in enumerate(pieces) for node in piece.arguments}
    steps = [
        (
            call,
            [slots[node] for node in piece.arguments],
            [s for n in piece.arguments if (s := slots[n]) not in live and last[s] == k],
            [slots[node] for node in piece.results],
        )
        for k, (piece, call) in enumerate(zip(pieces, calls, strict=True))
    ]
    space = [None] * (len(slots) - inputs)
    unused = [k for k in range(inputs) if k not in last and k not in live]

    @boxed
    def run(args: list[Any]) -> Sequence[Any]:
        values = [*args, *space]
        args.clear()
        for index in unused:
            values[index] = None
        for call, arguments, dead, results in steps:
            operands = [values[index] for index in arguments]
            for index in dead:
                values[index] = None
            for index, value in zip(results, call(operands), strict=True):
                values[index] = value
        return [constant if slot is None else values[slot] for slot, constant in outputs]

    return run


def costs(piece: Piece) -> bool:
    """Return whether a piece computes anything."""
    return any(n.op == "call_function" and not _is_free(n) for n in piece.module.graph.nodes)


def record(node: Node, why: Diagnostic) -> ExternRecord:
    """Describe a node that PyTorch runs, for reports."""
    line, code = innermost(node.meta.get("stack_trace") or "")
    source = f"{line}: {code}" if line else ""
    reason = f"{why.code}: {why.message}"
    return ExternRecord(str(node.target), node.name, reason, source, module_path(node))


def by_pytorch(piece: Piece) -> Boxed:
    """Return a callable that runs a piece with PyTorch, with results laid out as in the graph."""
    return conforming(piece, eager_graph(piece.module))


def conforming(piece: Piece, run: Boxed) -> Boxed:
    """Wrap a callable of a piece to return results laid out as in the graph."""
    layouts = [_layout(node.meta.get("val")) for node in piece.results]

    def call(args: list[Any]) -> Sequence[Any]:
        return [
            result if layout is None else layout(result)
            for result, layout in zip(run(args), layouts, strict=True)
        ]

    return call


def _layout(fake: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return a function that copies a tensor whose layout differs from that of `fake`; None if
    the layout is unspecified, or is symbolic and not contiguous."""
    if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided:
        return None
    strides = fake.stride()
    if all(isinstance(n, int) for n in (*fake.shape, *strides)):
        return lambda x: x if x.stride() == strides else copy_with_strides(x, strides)
    step: Any = 1
    for size, stride in zip(reversed(fake.shape), reversed(strides), strict=True):
        if expression_of(stride) != step:
            return None
        step = step * expression_of(size)
    return torch.Tensor.contiguous


def _returned(gm: GraphModule, item: Any, slots: Mapping[Node, int]) -> tuple[int | None, Any]:
    """Return the slot of a result of the graph, or its constant value."""
    if not isinstance(item, Node):
        return None, item
    if item.op == "get_attr":
        return None, operator.attrgetter(str(item.target))(gm)
    return slots[item], None


def _refused(gm: GraphModule, names: Collection[str]) -> set[Node]:
    """Return the nodes that PyTorch runs: the named ones, and those whose results programs lay
    out differently from PyTorch, since other nodes may depend on the layout."""
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    overlapping = (n for n in calls if any(map(_overlaps, each(n.meta.get("val")))))
    return {n for n in calls if n.name in names} | {n for n in overlapping if not _is_free(n)}


def _overlaps(fake: Any) -> bool:
    """Return whether a tensor is statically known to be expanded."""
    return isinstance(fake, torch.Tensor) and any(
        isinstance(step, int) and step == 0 and isinstance(size, int) and size > 1
        for size, step in zip(fake.shape, _strides(fake), strict=False)
    )


def _strides(fake: torch.Tensor) -> tuple[Any, ...]:
    return fake.stride() if fake.layout is torch.strided else ()


def _is_free(node: Node) -> bool:
    """Return whether a node costs nothing: a view, or a scalar computed from scalars and sizes."""
    if node.target is operator.getitem:
        return _is_free(node.all_input_nodes[0])
    if isinstance(node.target, torch._ops.OpOverload) and info_of(node.target).is_view:
        return True
    if not isinstance(node.meta.get("val"), _NUMBERS) or node.op != "call_function":
        return False
    inputs = [n.meta.get("val") for n in node.all_input_nodes]
    return node.target in _SIZES or not any(isinstance(v, torch.Tensor) for v in inputs)


_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)
_SIZES = (
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_stride.int,
    torch.ops.aten.sym_numel.default,
    torch.ops.aten.sym_storage_offset.default,
)


class _Cut:
    """One run of `cut`."""

    def __init__(self, gm: GraphModule, refused: set[Node]) -> None:
        self.gm = gm
        self.refused = refused
        self.order = {node: k for k, node in enumerate(gm.graph.nodes)}
        self.levels: dict[Node, int] = {}
        """The level of each node; for a free node, the highest level of its operands."""
        self.owned: dict[Node, int] = {}
        """The level of each node that belongs to exactly one piece."""
        self.symbols = {
            symbol: node
            for node in reversed(gm.graph.nodes)
            for symbol in _sizes(node.meta.get("val"))
            if not isinstance(node.meta["val"], torch.Tensor)
        }
        """The first node whose value is each size symbol."""

    def pieces(self) -> tuple[Piece, ...]:
        """Return the pieces in order."""
        self._assign_levels()
        returned = each(graph_results(self.gm))
        results = [n for n in returned if isinstance(n, Node) and n.op == "call_function"]
        first = min(self.owned.values(), default=0)
        outputs: dict[int, set[Node]] = {level: set() for level in self.owned.values()}
        for node in results:
            outputs.setdefault(max(self.levels[node], first), set()).add(node)
        needs: dict[int, list[Node]] = {}
        members: dict[int, set[Node]] = {level: set() for level in outputs}
        for node, level in self.owned.items():
            members[level].add(node)
        for level in sorted(outputs):
            inside, outside = self._closure(members[level] | outputs[level], level)
            members[level] = inside
            needs[level] = outside
            for node in outside:
                if node.op == "call_function":
                    outputs[self.owned[node]].add(node)
        return tuple(
            self._piece(level, members[level], needs[level], outputs[level])
            for level in sorted(outputs)
        )

    def _assign_levels(self) -> None:
        """Assign a level to every node."""
        shared = any(_is_free(node) for node in self.refused)  # pieces may return views
        top = floor = effects = 0
        for node in self.gm.graph.nodes:
            if node.op != "call_function":
                continue
            level = max([-1, *(self.levels.get(n, -1) for n in node.all_input_nodes)])
            if node.target is operator.getitem and node.all_input_nodes[0] in self.owned:
                self.owned[node] = self.levels[node] = level
                continue
            if node not in self.refused and _is_free(node):
                self.levels[node] = level
                continue
            writing, ordered = writes(node), _is_ordered(node)
            level = max(level, floor, top + shared if writing else 0, effects if ordered else 0)
            level += level % 2 == (node not in self.refused)
            self.owned[node] = self.levels[node] = level
            top = max(top, level)
            floor = level if writing else floor
            effects = level if ordered else effects

    def _closure(self, roots: Iterable[Node], level: int) -> tuple[set[Node], list[Node]]:
        """Return a piece's nodes, including free ones, and the nodes outside that it needs."""
        inside: set[Node] = set()
        outside: set[Node] = set()

        def add(nodes: Iterable[Node]) -> None:
            left = list(nodes)
            while left:
                node = left.pop()
                if node in inside or node in outside:
                    continue
                if node.op == "placeholder" or self.owned.get(node, level) != level:
                    outside.add(node)
                    continue
                inside.add(node)
                left.extend(node.all_input_nodes)

        add(roots)
        defined = {size for node in outside for size in _sizes(node.meta.get("val"))}
        for symbol in sorted(
            {s for node in (*inside, *outside) for s in _symbols(node.meta.get("val"))} - defined,
            key=str,
        ):
            source = self.symbols.get(symbol)
            if source is not None and self.levels.get(source, -1) < level:
                add([source])
        return inside, sorted(outside, key=self.order.__getitem__)

    def _piece(
        self, level: int, inside: set[Node], outside: Sequence[Node], outputs: set[Node]
    ) -> Piece:
        graph = Graph()
        env: dict[Node, Node] = {}
        for node in outside:
            env[node] = graph.placeholder(node.name)
            env[node].meta = dict(node.meta)
        for node in sorted(inside, key=self.order.__getitem__):
            env[node] = graph.node_copy(node, env.__getitem__)
        results = tuple(sorted(outputs, key=self.order.__getitem__))
        graph.output(tuple(env[node] for node in results))
        return Piece(GraphModule(self.gm, graph), level % 2 == 0, tuple(outside), results)


def _sizes(fake: Any) -> Iterator[Any]:
    """Yield the symbols that are the value itself, or one of its sizes."""
    for value in fake.shape if isinstance(fake, torch.Tensor) else (fake,):
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            yield value.node.expr


def _symbols(fake: Any) -> Iterator[Any]:
    """Yield the size symbols that a value depends on."""
    for value in each(fake):
        numbers: Iterable[Any] = (value,)
        if isinstance(value, torch.Tensor):
            numbers = (*value.shape, *_strides(value))
        for number in numbers:
            if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                yield from number.node.expr.free_symbols


def _is_ordered(node: Node) -> bool:
    """Return whether a node may consume random numbers or have effects, so that its order
    matters."""
    if isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in node.target.tags
    return isinstance(node.target, torch._ops.HigherOrderOperator)
