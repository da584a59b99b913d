"""`pack-weights`: weights that are known are brought into the layout that a library computes in.

Convolutions and products of `float32` on a CPU then read a packed weight, which is a constant,
where the library would bring it into its layout in each call.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from attrs import evolve, field, frozen
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gyrator_ir.target import Target
from gyrator_lowering.folding import PACKED
from gyrator_lowering.fx_passes.insert import insert, replace
from gyrator_lowering.fx_passes.known import known_nodes
from gyrator_lowering.fx_passes.linear_calls import LIBRARIES, Product, product_of

aten = torch.ops.aten

Packing = Callable[[Product], str]
"""Which library computes a product with a packed weight best: `onednn`, `mkl`, or none, ``""``."""


def not_packed(product: Product) -> str:
    """Say that no library gains by packing."""
    return ""


@frozen
class PackWeights:
    """Pack the weights of convolutions and products."""

    name: ClassVar[str] = "pack-weights"
    devices: frozenset[str] = frozenset()
    """Types of devices whose library packs."""
    packing: Packing = field(default=not_packed, repr=False)
    fast: bool = False
    """Let the library compute what follows a convolution too, which loses NaN in `relu`."""

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
                changed |= _convolution(gm, node, self.fast)
            elif node.target in (aten.mm.default, aten.addmm.default) and node.args[-1] in known:
                changed |= self._product(gm, node)
        return changed

    def _packs(self, node: Any, known: set[Node]) -> bool:
        x, weight, bias = node.args[:3]
        fake = node.meta["val"]
        if weight not in known or fake.dtype != torch.float32 or fake.dim() != 4:
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
        product = product_of(node, self.devices)
        how = "" if product is None else self.packing(evolve(product, turned=True))
        if not how:
            return False
        *bias, x, y = node.args
        rows = x.meta["val"].shape[0]
        weight = insert(gm, node, aten.permute.default, y, [1, 0])
        whole = insert(gm, node, aten.clone.default, weight, memory_format=torch.contiguous_format)
        added = bias[0] if bias else None
        if how == "mkl":
            if not isinstance(rows, int):
                return False
            packed = _packed(
                gm, node, torch.ops.mkl._mkl_reorder_linear_weight.default, whole, rows
            )
            op: Any = torch.ops.mkl._mkl_linear.default
            new = _call(gm, node, op, x, packed, whole, added, rows)
        else:
            count = rows if isinstance(rows, int) else None
            packed = _packed(
                gm, node, torch.ops.mkldnn._reorder_linear_weight.default, whole, count
            )
            op = torch.ops.mkldnn._linear_pointwise.default
            new = _call(gm, node, op, x, packed, added, "none", [], "")
        replace(gm, node, new)
        return True


def _packed(gm: GraphModule, before: Node, op: Any, weight: Node, *args: Any) -> Node:
    """Insert what packs a weight. To a graph its result looks like the weight."""
    packed = _call(gm, before, op, weight, *args)
    packed.meta["val"] = weight.meta["val"]
    packed.meta[PACKED] = True
    return packed


def _call(gm: GraphModule, like: Node, op: Any, *args: Any) -> Node:
    """Insert a call whose result looks like that of `like`, before it."""
    with gm.graph.inserting_before(like):
        node = gm.graph.call_function(op, args)
    node.meta = {k: v for k, v in like.meta.items() if k != "tensor_meta"}
    return node


def _convolution(gm: GraphModule, node: Any, fast: bool) -> bool:
    x, weight, bias, stride, padding, dilation, transposed, more, groups = node.args
    args: tuple[Any, ...]
    shape = x.meta["val"].shape
    sizes = list(shape) if isinstance(shape[0], int) else None
    window = (padding, stride, dilation, groups)
    if transposed:
        op = torch.ops.mkldnn._reorder_convolution_transpose_weight.default
        packed = _packed(gm, node, op, weight, padding, more, stride, dilation, groups, sizes)
        deep: Any = torch.ops.mkldnn._convolution_transpose_pointwise.default
        args = (x, packed, bias, padding, more, stride, dilation, groups, "none", [], "")
        replace(gm, node, _call(gm, node, deep, *args))
        return True
    op = torch.ops.mkldnn._reorder_convolution_weight.default
    packed = _packed(gm, node, op, weight, *window, sizes)
    deep = torch.ops.mkldnn._convolution_pointwise
    total, other = _addition(node) if fast else (None, None)
    last = node if total is None else total
    relu = _only_user(last, aten.relu.default) if fast else None
    end = last if relu is None else relu
    unary = "none" if relu is None else "relu"
    if total is None:
        new = _call(gm, end, deep.default, x, packed, bias, *window, unary, [], "")
    else:
        after = None if relu is None else "relu"
        args = (x, other, packed, bias, *window, "add", None, after, [], None)
        new = _call(gm, end, deep.binary, *args)
    replace(gm, end, new)
    for done in (total, node):
        if done is not None and done is not end:
            gm.graph.erase_node(done)
    return True


def _only_user(node: Node, op: Any) -> Any:
    """Return the one node that reads another, if it is a call of an op."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is op else None


def _addition(node: Node) -> tuple[Any, Any]:
    """Return the sum that alone reads a node, and the other operand, of the same layout."""
    total = _only_user(node, aten.add.Tensor)
    if total is None or total.kwargs or len(total.all_input_nodes) != 2:
        return None, None
    other = next(a for a in total.args if a is not node)
    mine, theirs = node.meta["val"], other.meta["val"]
    alike = mine.dtype == theirs.dtype and mine.shape == theirs.shape
    if not alike or mine.stride() != theirs.stride() or other.meta.get(PACKED):
        return None, None
    return total, other
