"""Plans of the layouts of a graph's values: what ops compute from operands with other strides."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from attrs import field
from torch.fx import GraphModule

from gyrator_ir.define import define
from gyrator_lowering.torch_bridge.graphs import is_channels_last

aten = torch.ops.aten

_REFUSED = (RuntimeError, ValueError)
"""Exceptions of fake tensors for a layout that an op does not support."""
_ADDRESSED = (aten.as_strided.default, aten.as_strided_scatter.default, aten.resize.default)
"""Ops whose semantics depend on their operands' strides; so do those of ops that draw random
numbers, which go to elements in the order of memory."""


@define(eq=False)
class LayoutPlan:
    """The planned changes of a graph: new fake values of nodes, and copies of their arguments.

    A subclass says where layouts change (`operands`, `starts`, `result`); the plan propagates them
    through all other ops and restores the original layouts of a graph's results.
    """

    mode: Any
    """The mode of the graph's fake tensors."""
    values: dict[Any, Any] = field(factory=dict)
    """The new values of nodes whose layout changes."""
    copies: dict[Any, dict[Any, torch.memory_format]] = field(factory=dict)
    """For each node, the arguments to copy and their new layouts."""

    def operands(self, node: Any) -> dict[Any, torch.memory_format]:
        """Return the arguments of a call that must be copied, with their layouts."""
        return {}

    def starts(self, node: Any) -> bool:
        """Return whether a call's result may change though its arguments do not."""
        return False

    def result(self, node: Any, value: Any) -> Any:
        """Return the result of a call in the layout that it should have."""
        return value

    def covers(self, gm: GraphModule) -> bool:
        """Plan all nodes of a graph; return whether that is possible: an op may refuse a layout,
        and a result may have one that has no name."""
        try:
            for node in gm.graph.nodes:
                self._visit(node)
        except _REFUSED:
            return False
        return True

    def _visit(self, node: Any) -> None:
        if node.op == "output":
            self._keep(node)
        elif node.op == "call_function":
            layouts = self.operands(node)
            changed = any(a in self.values for a in node.all_input_nodes)
            if layouts or changed or self.starts(node):
                self._call(node, layouts)

    def _call(self, node: Any, layouts: dict[Any, torch.memory_format]) -> None:
        overload = isinstance(node.target, torch._ops.OpOverload)
        addressed = node.target in _ADDRESSED
        addressed |= overload and torch.Tag.nondeterministic_seeded in node.target.tags
        if addressed or not (overload or node.target.__name__ == "getitem"):
            self._keep(node)
            return
        try:
            value = self._run(node, layouts)
        except _REFUSED:  # a view that is impossible in this layout
            self._keep(node)
            return
        if layouts:
            self.copies[node] = layouts
        if _strides(value) != _strides(node.meta.get("val")):
            self.values[node] = value

    def _keep(self, node: Any) -> None:
        """Restore the original layouts of a node's arguments."""
        back = {a: _format(a.meta["val"]) for a in node.all_input_nodes if a in self.values}
        if back:
            self.copies[node] = back

    def of(self, node: Any) -> Any:
        """Return the planned value of a node."""
        return self.values[node] if node in self.values else node.meta.get("val")

    def _run(self, node: Any, layouts: dict[Any, torch.memory_format]) -> Any:
        def ready(a: Any) -> Any:
            if not isinstance(a, torch.fx.Node):
                return a
            value = self.of(a)
            return value.clone(memory_format=layouts[a]) if a in layouts else value

        with self.mode:
            args, kwargs = pytree.tree_map(ready, (node.args, node.kwargs))
            return self.result(node, node.target(*args, **kwargs))

    def apply(self, gm: GraphModule) -> None:
        """Insert the copies into the graph, each once."""
        body = next(n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr"))
        for node, value in self.values.items():
            node.meta["val"] = value
        copies: dict[tuple[Any, torch.memory_format], Any] = {}
        for node, layouts in self.copies.items():
            for source, layout in layouts.items():
                if (source, layout) not in copies:
                    copies[source, layout] = self._copy(gm, body, source, layout)
                node.replace_input_with(source, copies[source, layout])

    def _copy(self, gm: GraphModule, body: Any, source: Any, layout: torch.memory_format) -> Any:
        computed = source.op == "call_function"
        with gm.graph.inserting_before(source.next if computed else body):
            kwargs: dict[str, Any] = {"memory_format": layout}
            copy = gm.graph.call_function(aten.clone.default, (source,), kwargs)
        # The copy belongs to the same pass, forward or backward, as its source.
        copy.meta = {k: v for k, v in source.meta.items() if k != "tensor_meta"} if computed else {}
        with self.mode:
            copy.meta["val"] = source.meta["val"].clone(memory_format=layout)
        return copy


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor))


def _strides(value: Any) -> list[tuple[int, ...]]:
    return [tuple(t.stride()) for t in _tensors(value)]


def _format(fake: Any) -> torch.memory_format:
    """Return the memory format of a tensor.

    Raises:
        RuntimeError: if the layout has no name.
    """
    if isinstance(fake, torch.Tensor):
        if fake.is_contiguous():
            return torch.contiguous_format
        if is_channels_last(fake):
            return torch.channels_last
    raise RuntimeError("a layout without a name")
