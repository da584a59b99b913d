"""`pack-weights`: weights that are known are brought into the layout that a library computes in.

Convolutions and products of `float32` and of `bfloat16` on a CPU then read a packed weight, which
is a constant, where the library would bring it into its layout in each call. What follows those of
`float32` element by element is computed by the library before it stores a result, where that is as
exact.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from attrs import evolve, field, frozen
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gyrator_ir.target import Target
from gyrator_lowering.folding import PACKED
from gyrator_lowering.fx_passes.insert import insert, insert_like, insert_packed, replace
from gyrator_lowering.fx_passes.known import known_nodes
from gyrator_lowering.fx_passes.products.activations import (
    NOTHING,
    Activation,
    activation_of,
    only_reader,
    readers,
)
from gyrator_lowering.fx_passes.products.linear_calls import LIBRARIES, Product, product_of
from gyrator_lowering.fx_passes.products.quantized_calls import Convolution, Integers
from gyrator_lowering.fx_passes.products.split_product_bias import kernels_may_add

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default)
_DTYPES = (torch.float32, torch.bfloat16)
_CALLS = (*_PRODUCTS, aten.bmm.default, aten.convolution.default, "output")
"""What reads a tensor as it is in memory, beside the results of a graph."""


@frozen
class Packed:
    """How a product with a packed weight is computed."""

    library: str = ""
    """`onednn`, `mkl`, `aten` for a weight that lies row by row, or none."""
    whole: bool = False
    """The library computes what follows the product too."""


class Packing(Integers, Protocol):
    """What knows the libraries of a machine."""

    def packed(self, product: Product, after: Activation, biased: bool) -> Packed:
        """Return how a product, and what follows it, is computed best. `biased` says that the
        library adds a bias, where it computes the product alone."""
        ...

    def allows(self, device: str, after: Activation) -> bool:
        """Whether oneDNN computes a function as exactly as is asked for, on a device."""
        ...


@frozen
class NotPacked:
    """No library gains by packing."""

    def packed(self, product: Product, after: Activation, biased: bool) -> Packed:
        """Return that it is not packed."""
        return Packed()

    def allows(self, device: str, after: Activation) -> bool:
        """Return that it is not exact enough."""
        return False

    def integers(self, call: Product | Convolution) -> bool:
        """Return that integers are no quicker."""
        return False


@frozen
class PackWeights:
    """Pack the weights of convolutions and products."""

    name: ClassVar[str] = "pack-weights"
    devices: frozenset[str] = frozenset()
    """Types of devices whose library packs."""
    packing: Packing = field(factory=NotPacked, repr=False)
    fast: bool = False
    """Let the library add what is added to a convolution, which rounds in another order."""

    @classmethod
    def of(cls, targets: Mapping[str, Target], packing: Packing, fast: bool) -> "PackWeights":
        """Return the pass for some targets, by device type."""
        able = (d for d, t in targets.items() if t.capabilities.libraries >= LIBRARIES)
        return cls(frozenset(able), packing, fast)

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        known = known_nodes(gm) if self.devices else set()
        changed = False
        for node in list(gm.graph.nodes):
            if node in known or node.op != "call_function":
                continue
            if node.target is aten.convolution.default and self._packs(node, known):
                self._convolution(gm, node)
                changed = True
            elif node.target in _PRODUCTS and node.args[-1] in known:
                changed |= self._product(gm, node)
        return changed

    def _packs(self, node: Any, known: set[Node]) -> bool:
        x, weight, bias = node.args[:3]
        fake = node.meta["val"]
        if weight not in known or fake.dtype not in _DTYPES or fake.dim() != 4:
            return False
        if fake.device.type not in self.devices or (bias is not None and bias not in known):
            return False
        sizes = (*fake.shape, *x.meta["val"].shape)
        if not all(isinstance(n, int) for n in (*fake.shape[1:], *sizes[5:])):
            return False
        if not all(statically_known_true(n > 0) for n in sizes):
            return False
        # The library's result has this layout.
        return bool(fake.is_contiguous(memory_format=torch.channels_last))

    def _product(self, gm: GraphModule, node: Any) -> bool:
        product = product_of(node, self.devices, _DTYPES)
        if product is None:
            return False
        end, after = self._after(node)
        if product.dtype != torch.float32:
            end, after = node, NOTHING  # eager rounds the product before what follows
        if not all(user.target in _CALLS for user in readers(end)):
            end, after = node, NOTHING  # a kernel reads it, and can as well compute it
        biased = node.target is aten.addmm.default and not kernels_may_add(node)
        how = self.packing.packed(evolve(product, turned=True), after, biased)
        if not how.library:
            return False
        *bias, x, y = node.args
        rows = x.meta["val"].shape[0]
        if how.library == "aten":
            if y.meta["val"].is_contiguous():
                return False
            straight = insert(
                gm, node, aten.clone.default, y, memory_format=torch.contiguous_format
            )
            node.replace_input_with(y, straight)
            return True
        weight = insert(gm, node, aten.permute.default, y, [1, 0])
        whole = insert(gm, node, aten.clone.default, weight, memory_format=torch.contiguous_format)
        added = bias[0] if bias else None
        if how.library == "mkl":
            if not isinstance(rows, int):
                return False
            packed = insert_packed(
                gm, node, torch.ops.mkl._mkl_reorder_linear_weight.default, whole, rows
            )
            op: Any = torch.ops.mkl._mkl_linear.default
            new = insert_like(gm, node, op, x, packed, whole, added, rows)
        else:
            count = rows if isinstance(rows, int) else None
            packed = insert_packed(
                gm, node, torch.ops.mkldnn._reorder_linear_weight.default, whole, count
            )
            op = torch.ops.mkldnn._linear_pointwise.default
            computed = after if how.whole else NOTHING
            new = insert_like(gm, node, op, x, packed, added, *computed.arguments)
        replace(gm, node, new)
        if how.whole and end is not node:
            replace(gm, end, end.args[0])
        return True

    def _after(self, node: Any) -> tuple[Any, Activation]:
        """Return the last node of what the library can compute of a node's elements, and what."""
        reader = only_reader(node)
        found = None if reader is None else activation_of(reader)
        if found is None or not self.packing.allows(node.meta["val"].device.type, found):
            return node, NOTHING
        return reader, found

    def _convolution(self, gm: GraphModule, node: Any) -> None:
        x, weight, bias, stride, padding, dilation, transposed, more, groups = node.args
        shape = x.meta["val"].shape
        sizes = list(shape) if isinstance(shape[0], int) else None
        window: tuple[Any, ...] = (padding, stride, dilation, groups)
        narrow = node.meta["val"].dtype != torch.float32
        adds = self.fast and not transposed and not narrow
        total, other = _addition(node) if adds else (None, None)
        last = node if total is None else total
        # Eager rounds a narrow result before what follows.
        end, after = (last, NOTHING) if narrow else self._after(last)
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


def _addition(node: Node) -> tuple[Any, Any]:
    """Return the sum that alone reads a node, and the other operand, of the same layout."""
    total: Any = next(iter(node.users)) if len(node.users) == 1 else None
    if total is None or total.target is not aten.add.Tensor or total.kwargs:
        return None, None
    if len(total.all_input_nodes) != 2:
        return None, None
    other = next(a for a in total.args if a is not node)
    mine, theirs = node.meta["val"], other.meta["val"]
    alike = mine.dtype == theirs.dtype and mine.shape == theirs.shape
    if not alike or mine.stride() != theirs.stride() or other.meta.get(PACKED):
        return None, None
    return total, other
