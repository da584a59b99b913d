"""`channels-last`: convolutions, and the ops between them, use channels-last images.

GPU libraries convert 16-bit images to that layout before a convolution and back after it, which
takes a quarter of the time of a ResNet. On a CPU the layout is faster for some convolutions and
slower for others, so a graph's convolutions are measured. The pass converts the inputs of
convolutions, propagates the layout through all other ops, and keeps the layouts of the graph's
results.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
import torch.utils._pytree as pytree
from attrs import define, field, frozen
from torch.fx import GraphModule

from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.products.linear_calls import (
    BFLOAT16_LIBRARIES,
    LIBRARIES,
    devices_with,
)

aten = torch.ops.aten

_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default
_OPERANDS = {_FORWARD: 2, _BACKWARD: 3}
"""The number of leading arguments that are images or weights."""
_READS = (aten.index.Tensor, aten._unsafe_index.Tensor)
_WRITES = (aten.index_put.default, aten._unsafe_index_put.default)
"""Ops at indices, as of interpolation: a kernel is fastest if what it reads and what it writes have
the same layout, which their fake kernels do not give them."""
_DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes of CPU convolutions whose weights are packed, or whose layout is measured."""
_REFUSED = (RuntimeError, ValueError)
"""Exceptions of fake tensors for a layout that an op does not support."""
_ADDRESSED = (aten.as_strided.default, aten.as_strided_scatter.default, aten.resize.default)
"""Ops whose semantics depend on their operands' strides; so do those of ops that draw random
numbers, which go to elements in the order of memory."""


@frozen
class ImageConvolution:
    """The properties of a 2-d convolution, or its gradients, on which its speed depends."""

    device: str
    dtype: torch.dtype
    input: tuple[int, ...]
    """The input's sizes; a symbolic batch size counts as one image."""
    weight: tuple[int, ...]
    biased: bool
    parameters: tuple[Any, ...]
    """Stride, padding, dilation, transposed, output padding and groups."""
    gradients: tuple[bool, ...] = ()
    """Which gradients are computed; empty for the convolution itself."""

    @classmethod
    def of(cls, node: Any) -> "ImageConvolution":
        """Read a call whose sizes are all static, except for the batch."""
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
    """Measurements of the speed of a machine's libraries."""

    def channels_last(self, convolutions: Sequence[ImageConvolution]) -> bool:
        """Return whether all of these together are faster on channels-last images."""
        ...


@frozen
class ChannelsLast:
    """Keep images channels-last from convolution to convolution."""

    name: ClassVar[str] = "channels-last"
    devices: frozenset[str] = frozenset()
    """Device types whose library prefers 16-bit images channels-last."""
    packing: frozenset[str] = frozenset()
    """Device types whose library takes packed `float32` weights; convolutions with these return
    channels-last results."""
    choosing: frozenset[str] = frozenset()
    """Device types for which `layouts` decides."""
    layouts: Layouts | None = field(default=None, repr=False)
    packing_bfloat16: frozenset[str] = frozenset()
    """Device types whose library takes packed `bfloat16` weights."""

    @classmethod
    def of(
        cls,
        targets: Mapping[str, Target],
        packing: bool = False,
        layouts: Layouts | None = None,
    ) -> "ChannelsLast":
        """Return the pass for some targets, by device type; with `packing`, weights are to be
        packed."""
        none = frozenset[str]()
        libraries = devices_with(LIBRARIES, targets)
        return cls(
            devices=frozenset(d for d, t in targets.items() if t.heuristics.channels_last),
            packing=libraries if packing else none,
            choosing=libraries if layouts is not None else none,
            layouts=layouts,
            packing_bfloat16=devices_with(BFLOAT16_LIBRARIES, targets) if packing else none,
        )

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        convolutions = [n for n in gm.graph.nodes if n.target in _OPERANDS]
        if not any(self.prefers(n.args[:2]) for n in convolutions if n.target is _FORWARD):
            measured = [n for n in convolutions if self._may_measure(_read(n))]
            if not measured or self.layouts is None:
                return False
            if not self.layouts.channels_last([ImageConvolution.of(n) for n in measured]):
                return False
            return self._apply(gm, convolutions[0], self._may_measure, weights=False)
        return self._apply(gm, convolutions[0], self.prefers, weights=True)

    def _apply(
        self, gm: GraphModule, first: Any, prefers: Callable[[Sequence[Any]], bool], weights: bool
    ) -> bool:
        plan = _Plan(first.args[0].meta["val"].fake_mode, prefers, weights)
        try:
            for node in gm.graph.nodes:
                plan.visit(node)
        except _REFUSED:  # an op or a result cannot keep its layout
            return False
        if not plan.copies:
            return False
        plan.apply(gm)
        return True

    def prefers(self, operands: Sequence[Any]) -> bool:
        """Return whether the library prefers these operands of a convolution channels-last."""
        fakes = [a.meta["val"] for a in operands]
        device = fakes[0].device.type
        packing = {torch.float32: self.packing, torch.bfloat16: self.packing_bfloat16}
        packed = all(device in packing.get(f.dtype, ()) for f in fakes)
        narrow = device in self.devices and all(f.element_size() == 2 for f in fakes)
        return (packed or narrow) and _images(fakes, any_batch=packed)

    def _may_measure(self, operands: Sequence[Any]) -> bool:
        """Return whether the layout of these operands of a convolution should be measured."""
        fakes = [a.meta["val"] for a in operands]
        is_candidate = fakes[0].device.type in self.choosing and fakes[0].numel() != 0
        return is_candidate and fakes[0].dtype in _DTYPES and _images(fakes, any_batch=True)


def _read(node: Any) -> Sequence[Any]:
    """Return the input and the weight of a convolution, or of its gradients."""
    operands: Sequence[Any] = node.args[: _OPERANDS[node.target]]
    return operands[-2:]


def _images(fakes: Sequence[Any], any_batch: bool) -> bool:
    """Return whether a convolution has two spatial axes and static sizes, except for the batch."""
    first = 1 if any_batch else 0
    fixed = all(isinstance(n, int) for f in fakes for n in (*f.shape[first:], *f.stride()))
    return fixed and all(f.dim() == 4 for f in fakes)


@define(eq=False)
class _Plan:
    """The planned changes of a graph: new fake values of nodes, and copies of their arguments."""

    mode: Any
    prefers: Callable[[Sequence[Any]], bool]
    weights: bool
    """Whether weights are converted too; otherwise the library handles them."""
    values: dict[Any, Any] = field(factory=dict)
    """The new values of nodes whose layout changes."""
    copies: dict[Any, dict[Any, torch.memory_format]] = field(factory=dict)
    """For each node, the arguments to copy and their new layouts."""

    def visit(self, node: Any) -> None:
        """Plan a node whose arguments are planned.

        Raises:
            RuntimeError: if no layout works.
        """
        if node.op == "output":
            self._keep(node)
        elif node.op == "call_function":
            layouts = self._images(node)
            if layouts or any(a in self.values for a in node.all_input_nodes):
                self._call(node, layouts)

    def _images(self, node: Any) -> dict[Any, torch.memory_format]:
        """Return the operands that must be copied, of a convolution or of a write of images at
        indices, with their layouts."""
        last = torch.channels_last
        if node.target in _WRITES:
            written = _indexes_pixels(node) and self._is_last(node.args[2])
            images = node.args[:1] if written else ()
        else:
            operands = node.args[: _OPERANDS.get(node.target, 0)]
            if not operands or not self.prefers(operands[-2:]):
                return {}
            images = operands if self.weights else operands[:-1]
        return {a: last for a in images if not self._of(a).is_contiguous(memory_format=last)}

    def _is_last(self, node: Any) -> bool:
        """Return whether a node is planned to be channels-last."""
        fake = self.values.get(node)
        return (
            isinstance(fake, torch.Tensor)
            and fake.dim() == 4
            and fake.is_contiguous(memory_format=torch.channels_last)
        )

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

    def _of(self, node: Any) -> Any:
        return self.values[node] if node in self.values else node.meta.get("val")

    def _run(self, node: Any, layouts: dict[Any, torch.memory_format]) -> Any:
        def ready(a: Any) -> Any:
            if not isinstance(a, torch.fx.Node):
                return a
            value = self._of(a)
            return value.clone(memory_format=layouts[a]) if a in layouts else value

        with self.mode:
            args, kwargs = pytree.tree_map(ready, (node.args, node.kwargs))
            value = node.target(*args, **kwargs)
            if node.target in _READS and _indexes_pixels(node) and self._is_last(node.args[0]):
                value = value.clone(memory_format=torch.channels_last)
            return value

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


def _indexes_pixels(node: Any) -> bool:
    """Return whether a read or write at indices takes them along the two axes of an image alone."""
    indices = node.args[1]
    return len(indices) == 4 and all((p is None) == (d < 2) for d, p in enumerate(indices))


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
        if fake.dim() == 4 and fake.is_contiguous(memory_format=torch.channels_last):
            return torch.channels_last
    raise RuntimeError("a layout without a name")
