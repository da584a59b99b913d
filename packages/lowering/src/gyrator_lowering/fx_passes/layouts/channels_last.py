"""`channels-last`: convolutions, and the ops between them, use channels-last images.

GPU libraries convert 16-bit images to that layout before a convolution and back after it, which
takes a quarter of the time of a ResNet. On a CPU the layout is faster for some convolutions and
slower for others, so a graph's convolutions are measured. The pass converts the inputs of
convolutions, propagates the layout through all other ops, and keeps the layouts of the graph's
results.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from attrs import field
from torch.fx import GraphModule

from gyrator_ir.define import define, frozen
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.layouts.plan import LayoutPlan
from gyrator_lowering.fx_passes.products.linear_calls import (
    BFLOAT16_LIBRARIES,
    LIBRARIES,
    devices_with,
)
from gyrator_lowering.generated_products import sums_windows
from gyrator_lowering.torch_bridge.graphs import is_channels_last

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

    def channels_last(
        self, convolutions: Sequence[ImageConvolution], copied: Callable[[], int]
    ) -> bool:
        """Return whether all of these together are faster on channels-last images, including the
        copies of images that this needs: `copied` returns the number of elements."""
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
    summing: frozenset[str] = frozenset()
    """Device types whose kernels sum the gradients of depthwise convolutions' weights."""

    @classmethod
    def of(
        cls, targets: Mapping[str, Target], packing: bool = False, layouts: Layouts | None = None
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
            summing=frozenset(d for d, t in targets.items() if t.heuristics.depthwise_gradients),
        )

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        convolutions = [n for n in gm.graph.nodes if n.target in _OPERANDS]
        if not any(self.prefers(n.args[:2]) for n in convolutions if n.target is _FORWARD):
            measured = [n for n in convolutions if self._in_library(n)]
            if not measured or self.layouts is None:
                return False
            plan = _Plan.beside(convolutions[0], self._may_measure, weights=False)
            calls = [ImageConvolution.of(n) for n in measured]
            if not self.layouts.channels_last(calls, lambda: plan.copied(gm)):
                return False
        else:
            plan = _Plan.beside(convolutions[0], self.prefers, weights=True)
        if not plan.covers(gm) or not (plan.copies or plan.values):
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

    def _in_library(self, node: Any) -> bool:
        """Return whether the layout of the operands of a convolution should be measured, and a
        library computes it rather than a kernel."""
        operands = _read(node)
        device = operands[0].meta["val"].device.type
        in_kernel = device in self.summing and sums_windows(node, with_image=False)
        return not in_kernel and self._may_measure(operands)

    def _may_measure(self, operands: Sequence[Any]) -> bool:
        """Return whether the layout of these operands of a convolution should be measured."""
        fakes = [a.meta["val"] for a in operands]
        is_candidate = fakes[0].device.type in self.choosing and _elements(fakes[0]) > 0
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
class _Plan(LayoutPlan):
    """Images that are channels-last where a convolution prefers that."""

    prefers: Callable[[Sequence[Any]], bool] = field(kw_only=True)
    weights: bool = field(kw_only=True)
    """Whether weights are converted too; otherwise the library handles them."""

    @classmethod
    def beside(cls, node: Any, prefers: Callable[[Sequence[Any]], bool], weights: bool) -> "_Plan":
        """Return an empty plan for the graph of a convolution."""
        return cls(node.args[0].meta["val"].fake_mode, prefers=prefers, weights=weights)

    def copied(self, gm: GraphModule) -> int:
        """Return the number of elements of images that are copied from the graph's arguments and
        from convolutions; kernels write theirs in either layout."""
        if not self.covers(gm):
            return 0
        pairs = {(a, layout) for layouts in self.copies.values() for a, layout in layouts.items()}
        return sum(_elements(a.meta["val"]) for a, _ in pairs if _is_stored(a))

    def starts(self, node: Any) -> bool:
        """Return whether the library chooses the layout of the result."""
        operands = node.args[: _OPERANDS.get(node.target, 0)]
        return bool(operands) and self.prefers(operands[-2:])

    def operands(self, node: Any) -> dict[Any, torch.memory_format]:
        """Return the operands that must be copied, of a convolution or of a write of images at
        indices, with their layouts."""
        last = torch.channels_last
        if node.target in _WRITES:
            written = _indexes_pixels(node) and self._is_last(node.args[2])
            images = node.args[:1] if written else ()
        else:
            if not self.starts(node):
                return {}
            operands = node.args[: _OPERANDS[node.target]]
            images = operands if self.weights else operands[:-1]
        return {a: last for a in images if not self.of(a).is_contiguous(memory_format=last)}

    def _is_last(self, node: Any) -> bool:
        """Return whether a node is planned to be channels-last."""
        fake = self.values.get(node)
        return isinstance(fake, torch.Tensor) and is_channels_last(fake)

    def result(self, node: Any, value: Any) -> Any:
        """Return pixels that are read at indices channels-last, if the image is."""
        if node.target in _READS and _indexes_pixels(node) and self._is_last(node.args[0]):
            return value.clone(memory_format=torch.channels_last)
        return value


def _is_stored(node: Any) -> bool:
    """Return whether a value is in memory whatever is fused: an argument of the graph, or what a
    convolution returns."""
    if node.op != "call_function":
        return True
    return node.target in _OPERANDS or any(a.target is _BACKWARD for a in node.all_input_nodes)


def _elements(fake: Any) -> int:
    """Return the number of elements; a symbolic size counts as one, as in `ImageConvolution`."""
    return math.prod(n for n in fake.shape if isinstance(n, int))


def _indexes_pixels(node: Any) -> bool:
    """Return whether a read or write at indices takes them along the two axes of an image alone."""
    indices = node.args[1]
    return len(indices) == 4 and all((p is None) == (d < 2) for d, p in enumerate(indices))
