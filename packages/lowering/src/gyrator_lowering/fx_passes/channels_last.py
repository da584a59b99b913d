"""`channels-last`: convolutions, and what lies between them, keep the channels of a point together.

Libraries convert planes in 16 bits to that layout before a convolution and back after it, unless
they have it already: a quarter of the time of a ResNet. The pass gives it to what convolutions
read, lets every op carry on its operands' layout, and gives results of the graph the layout that
they had.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.utils._pytree as pytree
from attrs import define, field, frozen
from torch.fx import GraphModule

from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.products.linear_calls import LIBRARIES

aten = torch.ops.aten

_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default
_OPERANDS = {_FORWARD: 2, _BACKWARD: 3}
"""How many of the first arguments have planes."""
_REFUSED = (RuntimeError, ValueError)
"""What fake tensors raise for a layout that an op does not take."""
_ADDRESSED = (aten.as_strided.default, aten.as_strided_scatter.default)
"""Ops whose meaning hangs on their operands' strides."""


@frozen
class ChannelsLast:
    """Lay images out by points, from convolution to convolution."""

    name: ClassVar[str] = "channels-last"
    devices: frozenset[str] = frozenset()
    """Types of devices whose library wants that of planes in 16 bits."""
    packing: frozenset[str] = frozenset()
    """Types of devices whose library is to be given packed weights, and packs those of `float32`:
    convolutions with these have results by points."""

    @classmethod
    def of(cls, targets: Mapping[str, Target], packing: bool = False) -> "ChannelsLast":
        """Return the pass for some targets, by device type; `packing`: weights are to be packed."""
        packs = (d for d, t in targets.items() if packing and t.capabilities.libraries >= LIBRARIES)
        wants = (d for d, t in targets.items() if t.heuristics.channels_last)
        return cls(frozenset(wants), frozenset(packs))

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        convolutions = (n for n in gm.graph.nodes if n.target is _FORWARD)
        first = next((n for n in convolutions if self.wants(n.args[:2])), None)
        if first is None:
            return False
        plan = _Plan(first.meta["val"].fake_mode, self.wants)
        try:
            for node in gm.graph.nodes:
                plan.visit(node)
        except _REFUSED:  # an op, or a result, for which the layout can't be kept
            return False
        if not plan.copies:
            return False
        plan.apply(gm)
        return True

    def wants(self, operands: Sequence[Any]) -> bool:
        """Whether the library wants these operands of a convolution by points."""
        fakes = [a.meta["val"] for a in operands]
        device = fakes[0].device.type
        packed = device in self.packing and all(f.dtype == torch.float32 for f in fakes)
        narrow = device in self.devices and all(f.element_size() == 2 for f in fakes)
        first = 1 if packed else 0  # batches of any size
        fixed = all(isinstance(n, int) for f in fakes for n in (*f.shape[first:], *f.stride()))
        return (packed or narrow) and fixed and all(f.dim() == 4 for f in fakes)


@define(eq=False)
class _Plan:
    """What becomes of a graph: new values of nodes, and copies of their arguments."""

    mode: Any
    wants: Callable[[Sequence[Any]], bool]
    values: dict[Any, Any] = field(factory=dict)
    """Of nodes with another layout than before."""
    copies: dict[Any, dict[Any, torch.memory_format]] = field(factory=dict)
    """For a node, the arguments that it gets copies of."""

    def visit(self, node: Any) -> None:
        """Settle a node whose arguments are settled.

        Raises:
            RuntimeError: where no layout does.
        """
        if node.op == "output":
            self._keep(node)
        elif node.op == "call_function":
            wanted = self._planes(node)
            if wanted or any(a in self.values for a in node.all_input_nodes):
                self._call(node, wanted)

    def _planes(self, node: Any) -> dict[Any, torch.memory_format]:
        """Return the operands of a convolution that are to be copied."""
        operands = node.args[: _OPERANDS.get(node.target, 0)]
        if not operands or not self.wants(operands[-2:]):
            return {}
        last = torch.channels_last
        return {a: last for a in operands if not self._of(a).is_contiguous(memory_format=last)}

    def _call(self, node: Any, wanted: dict[Any, torch.memory_format]) -> None:
        overload = isinstance(node.target, torch._ops.OpOverload)
        if node.target in _ADDRESSED or not (overload or node.target.__name__ == "getitem"):
            self._keep(node)
            return
        try:
            value = self._run(node, wanted)
        except _REFUSED:  # a view that the layout does not have
            self._keep(node)
            return
        if wanted:
            self.copies[node] = wanted
        if _strides(value) != _strides(node.meta.get("val")):
            self.values[node] = value

    def _keep(self, node: Any) -> None:
        """Give a node the layouts that it had before."""
        back = {a: _format(a.meta["val"]) for a in node.all_input_nodes if a in self.values}
        if back:
            self.copies[node] = back

    def _of(self, node: Any) -> Any:
        return self.values[node] if node in self.values else node.meta.get("val")

    def _run(self, node: Any, wanted: dict[Any, torch.memory_format]) -> Any:
        def ready(a: Any) -> Any:
            if not isinstance(a, torch.fx.Node):
                return a
            value = self._of(a)
            return value.clone(memory_format=wanted[a]) if a in wanted else value

        with self.mode:
            args, kwargs = pytree.tree_map(ready, (node.args, node.kwargs))
            return node.target(*args, **kwargs)

    def apply(self, gm: GraphModule) -> None:
        """Put the copies into the graph, each once."""
        body = next(n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr"))
        for node, value in self.values.items():
            node.meta["val"] = value
        made: dict[tuple[Any, torch.memory_format], Any] = {}
        for node, wanted in self.copies.items():
            for source, layout in wanted.items():
                if (source, layout) not in made:
                    made[source, layout] = self._copy(gm, body, source, layout)
                node.replace_input_with(source, made[source, layout])

    def _copy(self, gm: GraphModule, body: Any, source: Any, layout: torch.memory_format) -> Any:
        computed = source.op == "call_function"
        with gm.graph.inserting_before(source.next if computed else body):
            kwargs: dict[str, Any] = {"memory_format": layout}
            copy = gm.graph.call_function(aten.clone.default, (source,), kwargs)
        # It is where its source is: the partitioner tells forward from backward by this.
        copy.meta = {k: v for k, v in source.meta.items() if k != "tensor_meta"} if computed else {}
        with self.mode:
            copy.meta["val"] = source.meta["val"].clone(memory_format=layout)
        return copy


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor))


def _strides(value: Any) -> list[tuple[int, ...]]:
    return [tuple(t.stride()) for t in _tensors(value)]


def _format(fake: Any) -> torch.memory_format:
    """Return the layout of a tensor.

    Raises:
        RuntimeError: where it has no name.
    """
    if isinstance(fake, torch.Tensor):
        if fake.is_contiguous():
            return torch.contiguous_format
        if fake.dim() == 4 and fake.is_contiguous(memory_format=torch.channels_last):
            return torch.channels_last
    raise RuntimeError("a layout without a name")
