"""`channels-last`: convolutions, and what lies between them, keep the channels of a point together.

Libraries of GPUs convert planes in 16 bits to that layout before a convolution and back after it,
unless they have it already: a quarter of the time of a ResNet. On a CPU it is quicker for some
convolutions and slower for others, so that those of a graph are measured. The pass gives the layout
to what convolutions read, lets every op carry on its operands' layout, and gives results of the
graph the layout that they had.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

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
_DTYPES = (torch.float32, torch.bfloat16)
"""Of convolutions on a CPU whose weights are packed, or whose layout is measured."""
_REFUSED = (RuntimeError, ValueError)
"""What fake tensors raise for a layout that an op does not take."""
_ADDRESSED = (aten.as_strided.default, aten.as_strided_scatter.default)
"""Ops whose meaning hangs on their operands' strides."""


@frozen
class ImageConvolution:
    """A convolution of images, or its gradients, as libraries tell them apart."""

    device: str
    dtype: torch.dtype
    input: tuple[int, ...]
    """Its sizes; a batch whose size varies counts as one image."""
    weight: tuple[int, ...]
    biased: bool
    parameters: tuple[Any, ...]
    """Stride, padding, dilation, whether it is transposed, output padding and groups."""
    gradients: tuple[bool, ...] = ()
    """Which are computed; empty for the convolution itself."""

    @classmethod
    def of(cls, node: Any) -> "ImageConvolution":
        """Read a call whose sizes, but for that of the batch, are fixed."""
        backward = node.target is _BACKWARD
        x, weight = (a.meta["val"] for a in node.args[backward : backward + 2])
        batch = x.shape[0] if isinstance(x.shape[0], int) else 1
        settings = [
            tuple(a) if isinstance(a, list | tuple) else a for a in node.args[3 + backward :]
        ]
        return cls(
            x.device.type,
            x.dtype,
            (batch, *x.shape[1:]),
            tuple(weight.shape),
            settings[-1][2] if backward else node.args[2] is not None,
            tuple(settings[:6]),
            settings[6] if backward else (),
        )


class Layouts(Protocol):
    """What knows how quick the libraries of a machine are."""

    def by_points(self, convolutions: Sequence[ImageConvolution]) -> bool:
        """Whether all of these together are quicker if images are laid out by points."""
        ...


@frozen
class ChannelsLast:
    """Lay images out by points, from convolution to convolution."""

    name: ClassVar[str] = "channels-last"
    devices: frozenset[str] = frozenset()
    """Types of devices whose library wants that of planes in 16 bits."""
    packing: frozenset[str] = frozenset()
    """Types of devices whose library is to be given packed weights, and packs those of `float32`
    and `bfloat16`: convolutions with these have results by points."""
    choosing: frozenset[str] = frozenset()
    """Types of devices for which `layouts` is asked."""
    layouts: Layouts | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        targets: Mapping[str, Target],
        packing: bool = False,
        layouts: Layouts | None = None,
    ) -> "ChannelsLast":
        """Return the pass for some targets, by device type; `packing`: weights are to be packed."""
        libraries = {d for d, t in targets.items() if t.capabilities.libraries >= LIBRARIES}
        wants = (d for d, t in targets.items() if t.heuristics.channels_last)
        packs = libraries if packing else ()
        asks = libraries if layouts is not None else ()
        return cls(frozenset(wants), frozenset(packs), frozenset(asks), layouts)

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        found = [n for n in gm.graph.nodes if n.target in _OPERANDS]
        if not any(self.wants(n.args[:2]) for n in found if n.target is _FORWARD):
            measured = [n for n in found if self._asks(_read(n))]
            if not measured or self.layouts is None:
                return False
            if not self.layouts.by_points([ImageConvolution.of(n) for n in measured]):
                return False
            return self._laid_out(gm, found[0], self._asks, weights=False)
        return self._laid_out(gm, found[0], self.wants, weights=True)

    def _laid_out(
        self, gm: GraphModule, first: Any, wants: Callable[[Sequence[Any]], bool], weights: bool
    ) -> bool:
        plan = _Plan(first.args[0].meta["val"].fake_mode, wants, weights)
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
        packed = device in self.packing and all(f.dtype in _DTYPES for f in fakes)
        narrow = device in self.devices and all(f.element_size() == 2 for f in fakes)
        return (packed or narrow) and _images(fakes, any_batch=packed)

    def _asks(self, operands: Sequence[Any]) -> bool:
        """Whether these operands of a convolution may be laid out by points if that is quicker."""
        fakes = [a.meta["val"] for a in operands]
        known = fakes[0].device.type in self.choosing and fakes[0].numel() != 0
        return known and fakes[0].dtype in _DTYPES and _images(fakes, any_batch=True)


def _read(node: Any) -> Sequence[Any]:
    """Return the input and the weight of a convolution, or of its gradients."""
    operands: Sequence[Any] = node.args[: _OPERANDS[node.target]]
    return operands[-2:]


def _images(fakes: Sequence[Any], any_batch: bool) -> bool:
    """Whether a convolution has two spatial axes and fixed sizes, but for that of the batch."""
    first = 1 if any_batch else 0
    fixed = all(isinstance(n, int) for f in fakes for n in (*f.shape[first:], *f.stride()))
    return fixed and all(f.dim() == 4 for f in fakes)


@define(eq=False)
class _Plan:
    """What becomes of a graph: new values of nodes, and copies of their arguments."""

    mode: Any
    wants: Callable[[Sequence[Any]], bool]
    weights: bool
    """Whether weights are copied too; else the library does what it does with them."""
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
        planes = operands if self.weights else operands[:-1]
        return {a: last for a in planes if not self._of(a).is_contiguous(memory_format=last)}

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
