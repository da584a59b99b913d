"""`pack-weights`: known weights are converted to the layout that a library computes with.

CPU convolutions and products of `float32` and `bfloat16` then read a packed weight, which is a
constant, instead of packing it in every call. The library also applies the elementwise function
that follows a `float32` product or convolution before it stores the result, if its function is
accurate enough.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from attrs import evolve, field
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gyrator_ir.define import frozen
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.constants import constant_nodes
from gyrator_lowering.fx_passes.insert import (
    contiguous,
    insert,
    insert_like,
    insert_packed,
    replace,
)
from gyrator_lowering.fx_passes.products.convolution_tiles import (
    addition_of,
    convolve_in_panels,
    tiles,
)
from gyrator_lowering.fx_passes.products.depthwise_kernels import convolve_in_kernels, is_depthwise
from gyrator_lowering.fx_passes.products.linear_calls import (
    BFLOAT16_LIBRARIES,
    LIBRARIES,
    Product,
    devices_with,
    product_of,
)
from gyrator_lowering.fx_passes.products.post_ops import (
    NOTHING,
    Activation,
    activation_of,
    only_reader,
    readers,
)
from gyrator_lowering.fx_passes.products.quantized_calls import Integers
from gyrator_lowering.fx_passes.products.split_product_bias import kernels_may_add
from gyrator_lowering.generated_products import narrow_convolution
from gyrator_lowering.torch_bridge.graphs import is_channels_last
from gyrator_lowering.torch_bridge.random_ops import register_ops

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default)
_DTYPES = (torch.float32, torch.bfloat16)
_CALLS = (*_PRODUCTS, aten.bmm.default, aten.convolution.default, "output")
"""Nodes that read a tensor in memory: calls, and the output of a graph."""


@frozen
class Packed:
    """How to compute a product with a packed weight."""

    library: str = ""
    """`onednn`, `mkl`, `aten` for a row-major weight, `kernels` for a generated kernel that reads
    panels, or empty for none."""
    whole: bool = False
    """The library computes the elementwise function after the product too."""


class Packing(Integers, Protocol):
    """Measurements of a machine's libraries."""

    def packed(self, product: Product, after: Activation, biased: bool) -> Packed:
        """Return the fastest way to compute a product and the function after it. `biased` says
        whether the library adds a bias, if it computes the product alone."""
        ...


@frozen
class PackWeights:
    """Pack the weights of convolutions and products."""

    name: ClassVar[str] = "pack-weights"
    devices: frozenset[str] = frozenset()
    """Device types whose library packs `float32` weights."""
    packing: Packing | None = field(default=None, repr=False)
    fast: bool = False
    """Fuse additions into convolutions, which rounds in another order."""
    bfloat16: frozenset[str] = frozenset()
    """Device types whose library packs `bfloat16` weights."""
    panels: tuple[tuple[str, int], ...] = ()
    """The columns of the panels that kernels read, by device type."""
    direct: tuple[tuple[str, int], ...] = ()
    """Device types whose kernels compute convolutions by tiles of pixels and features, and the most
    pixels of the results of several images with large weights."""
    depthwise: tuple[tuple[str, int], ...] = ()
    """The elements of the largest window of the depthwise convolutions that kernels compute, by
    device type."""

    @classmethod
    def of(
        cls, targets: Mapping[str, Target], packing: Packing | None, fast: bool
    ) -> "PackWeights":
        """Return the pass for some targets, by device type."""
        bfloat16 = devices_with(BFLOAT16_LIBRARIES, targets)
        widths = ((d, t.heuristics.panel_columns) for d, t in targets.items())
        panels = tuple((device, width) for device, width in widths if width)
        kind = TemplateKind.CONVOLUTION.value
        direct = tuple(
            (d, t.heuristics.convolution_pixels)
            for d, t in targets.items()
            if kind in t.capabilities.templates
        )
        windows = ((d, t.heuristics.depthwise_window) for d, t in targets.items())
        depthwise = tuple((device, window) for device, window in windows if window)
        libraries = devices_with(LIBRARIES, targets)
        return cls(libraries, packing, fast, bfloat16, panels, direct, depthwise)

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        if self.packing is None or not self.devices:
            return False
        constants = constant_nodes(gm)
        direct, panels = dict(self.direct), dict(self.panels)
        changed = False
        for node in list(gm.graph.nodes):
            if node in constants or node.op != "call_function":
                continue
            if node.target is aten.convolution.default and self._packs(node, constants):
                device = node.meta["val"].device.type
                if device in direct and tiles(node, direct[device]):
                    convolve_in_panels(gm, node, panels[device])
                elif is_depthwise(node, dict(self.depthwise).get(device, 0)):
                    convolve_in_kernels(gm, node)
                else:
                    self._convolution(gm, node, self.packing)
                changed = True
            elif node.target in _PRODUCTS and node.args[-1] in constants:
                changed |= self._product(gm, node, self.packing)
        return changed

    def _supports(self, device: str, dtype: torch.dtype) -> bool:
        """Return whether the library packs weights of this dtype."""
        return device in (self.devices if dtype == torch.float32 else self.bfloat16)

    def _packs(self, node: Any, constants: set[Node]) -> bool:
        x, weight, bias = node.args[:3]
        fake = node.meta["val"]
        if weight not in constants or fake.dtype not in _DTYPES or fake.dim() != 4:
            return False
        if not self._supports(fake.device.type, fake.dtype):
            return False
        if narrow_convolution(node):
            return False  # kernels compute it, or where they do not, packing saves little
        if bias is not None and bias not in constants:
            return False
        sizes = (*fake.shape, *x.meta["val"].shape)
        if not all(isinstance(n, int) for n in (*fake.shape[1:], *sizes[5:])):
            return False
        if not all(statically_known_true(n > 0) for n in sizes):
            return False
        return is_channels_last(fake)  # as the library returns its result

    def _product(self, gm: GraphModule, node: Any, packing: Packing) -> bool:
        product = product_of(node, self.devices, _DTYPES)
        if product is None or not self._supports(product.device, product.dtype):
            return False
        end, after = _after(node, packing)
        if product.dtype != torch.float32:
            end, after = node, NOTHING  # eager rounds the product before the function
        if not all(user.target in _CALLS for user in readers(end)):
            end, after = node, NOTHING  # a kernel reads it, and can compute the function itself
        biased = node.target is aten.addmm.default and not kernels_may_add(node)
        how = packing.packed(evolve(product, turned=True), after, biased)
        if not how.library:
            return False
        *bias, x, y = node.args
        rows, call = x.meta["val"].shape[0], partial(insert, gm, node)
        if how.library == "aten":
            if y.meta["val"].is_contiguous():
                return False
            node.replace_input_with(y, contiguous(call, y))
            return True
        if how.library == "kernels":
            width = dict(self.panels).get(product.device)
            if not width or product.columns % width:
                return False
            replace(gm, node, _in_panels(gm, node, width))
            return True
        weight = contiguous(call, call(aten.permute.default, y, [1, 0]))
        added = bias[0] if bias else None
        if how.library == "mkl":
            if not isinstance(rows, int):
                return False
            pack: Any = torch.ops.mkl._mkl_reorder_linear_weight.default
            packed = insert_packed(gm, node, pack, weight, rows)
            op: Any = torch.ops.mkl._mkl_linear.default
            new = insert_like(gm, node, op, x, packed, weight, added, rows)
        else:
            count = rows if isinstance(rows, int) else None
            pack = torch.ops.mkldnn._reorder_linear_weight.default
            packed = insert_packed(gm, node, pack, weight, count)
            op = torch.ops.mkldnn._linear_pointwise.default
            computed = after if how.whole else NOTHING
            new = insert_like(gm, node, op, x, packed, added, *computed.arguments)
        replace(gm, node, new)
        if how.whole and end is not node:
            replace(gm, end, end.args[0])
        return True

    def _convolution(self, gm: GraphModule, node: Any, packing: Packing) -> None:
        x, weight, bias, stride, padding, dilation, transposed, more, groups = node.args
        shape = x.meta["val"].shape
        sizes = list(shape) if isinstance(shape[0], int) else None
        window: tuple[Any, ...] = (padding, stride, dilation, groups)
        narrow = node.meta["val"].dtype != torch.float32
        adds = self.fast and not transposed and not narrow
        total, other = addition_of(node) if adds else (None, None)
        last = node if total is None else total
        # Eager rounds a narrow result before the function.
        end, after = (last, NOTHING) if narrow else _after(last, packing)
        if total is not None and after.attr != "relu":
            end, after = last, NOTHING
        mkldnn = torch.ops.mkldnn
        if transposed:
            window = (padding, more, stride, dilation, groups)
            packs = mkldnn._reorder_convolution_transpose_weight
            deep = mkldnn._convolution_transpose_pointwise.default
        else:
            packs, deep = mkldnn._reorder_convolution_weight, mkldnn._convolution_pointwise.default
        packed = insert_packed(gm, node, packs.default, weight, *window, sizes)
        if total is None:
            new = insert_like(gm, node, deep, x, packed, bias, *window, *after.arguments)
        else:
            deep = mkldnn._convolution_pointwise.binary
            unary = None if after is NOTHING else after.attr
            args = (x, other, packed, bias, *window, "add", None, unary, [], None)
            new = insert_like(gm, total, deep, *args)
        replace(gm, last, new)
        if last is not node:
            gm.graph.erase_node(node)
        if end is not last:
            replace(gm, end, end.args[0])


def _after(node: Any, packing: Packing) -> tuple[Any, Activation]:
    """Return the elementwise function after a node that the library can fuse, and its node."""
    reader = only_reader(node)
    activation = None if reader is None else activation_of(reader)
    if activation is None or not packing.allows(node.meta["val"].device.type, activation):
        return node, NOTHING
    return reader, activation


def _in_panels(gm: GraphModule, node: Any, width: int) -> Node:
    """Insert a product by a kernel that reads the weight in panels, before a product."""
    register_ops()
    *bias, x, y = node.args
    depth, columns = y.meta["val"].shape
    call = partial(insert, gm, node)
    split = call(aten.view.default, y, [depth, columns // width, width])
    panels = contiguous(call, call(aten.permute.default, split, [1, 0, 2]))
    new = call(torch.ops.gyrator.panel_mm.default, x, panels)
    return call(aten.add.Tensor, new, bias[0]) if bias else new
