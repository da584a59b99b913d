"""`quantized-calls`: products and convolutions of quantised tensors are computed in integers.

A quantised graph multiplies what it has dequantised, in `float32`. Where a weight is known, oneDNN
takes the integers themselves: it sums exact products, scales each sum once, adds the bias, applies
a function, and quantises the result where that is all that is done with it. Those sums are closer
to the exact ones than sums of rounded numbers.
"""

import math
import operator
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import torch
from attrs import field, frozen
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gyrator_ir.target import Target
from gyrator_lowering.folding import ASSUMED, ZEROS
from gyrator_lowering.fx_passes.insert import (
    converted,
    insert,
    insert_after,
    insert_like,
    insert_packed,
    replace,
)
from gyrator_lowering.fx_passes.known import known_nodes
from gyrator_lowering.fx_passes.products.activations import NOTHING, Activation, activation_of
from gyrator_lowering.fx_passes.products.linear_calls import LIBRARIES, Product, hint_of, product_of

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_MOVES = (
    *_VIEWS, aten.clone.default, aten.alias.default, aten.permute.default, aten.transpose.int,
    aten.t.default, aten.slice.Tensor, aten.select.int, aten.unsqueeze.default,
    aten.squeeze.dim,
)  # fmt: skip
"""What changes no element."""
_TURNS = (aten.clone.default, aten.permute.default, aten.t.default, aten.transpose.int)
"""What a weight may go through."""
_RANGES = MappingProxyType({torch.uint8: (0, 255), torch.int8: (-128, 127)})
_NAMESPACE = "quantized_decomposed."
_PER_TENSOR = f"{_NAMESPACE}dequantize_per_tensor.default"
_PER_TENSOR_GIVEN = f"{_NAMESPACE}dequantize_per_tensor.tensor"
_PER_CHANNEL = f"{_NAMESPACE}dequantize_per_channel.default"
_QUANTIZE = f"{_NAMESPACE}quantize_per_tensor.default"
_CHOOSE = tuple(f"{_NAMESPACE}choose_qparams{kind}.tensor" for kind in ("", "_symmetric"))
_MOST_SUMMED = 1 << 16
"""Products of bytes whose sum fits into 32 bits."""
_LEAST_CHANGING = 1 << 26
"""Products of sizes that change must have so many multiplications: see `linear-calls`."""
_EXACT = ("relu", "hardtanh")
"""Functions that round nothing."""
_AFTER_PRODUCTS = frozenset({
    "none", "relu", "leaky_relu", "hardtanh", "gelu", "swish", "tanh", "hardswish",
})  # fmt: skip
_AFTER_CONVOLUTIONS = MappingProxyType({
    3: frozenset({"none", "relu"}),
    4: frozenset({"none", "relu", "hardtanh", "swish", "hardswish"}),
})  # fmt: skip
"""By the number of axes."""


@frozen
class Convolution:
    """A convolution of quantised images, as a library sees it."""

    device: str
    images: tuple[int, ...]
    """Their shape; a number that changes counts as in the example that was traced."""
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Integers(Protocol):
    """What knows how quickly a machine multiplies bytes."""

    def integers(self, call: Product | Convolution) -> bool:
        """Return whether a product, whose `dtype` is that of its left matrix, or a convolution is
        right and quicker in integers."""
        ...

    def allows(self, device: str, after: Activation) -> bool:
        """Whether oneDNN computes a function as exactly as is asked for, on a device."""
        ...


@frozen(eq=False)
class _Quantized:
    """A tensor that is dequantised."""

    values: Any
    scale: Any
    """A number, or a node; of a weight a node."""
    zero: Any
    moves: tuple[Any, ...]
    """What lies between the dequantised tensor and its reader, first to last."""


@frozen(eq=False)
class _Result:
    """What becomes of a sum: what the library computes after it, and the type that it stores."""

    after: Activation = NOTHING
    quantize: Any = None
    """The node that quantises it; None where the result is one of floats."""
    between: tuple[Any, ...] = ()
    """The nodes from the sum to that one."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The last arguments of a call."""
        stored = (1.0, 0, torch.float32)
        if self.quantize is not None:
            stored = (*self.quantize.args[1:3], self.quantize.args[5])
        return (*stored, *self.after.arguments)


@frozen
class QuantizedCalls:
    """Let oneDNN multiply the bytes of quantised tensors by weights that are known."""

    name: ClassVar[str] = "quantized-calls"
    devices: frozenset[str] = frozenset()
    """Types of devices whose library does."""
    choice: Integers | None = field(default=None, repr=False)
    """What tells whether it gains; None for never."""

    @classmethod
    def of(cls, targets: Mapping[str, Target], choice: Integers | None) -> "QuantizedCalls":
        """Return the pass for some targets, by device type."""
        able = (d for d, t in targets.items() if t.capabilities.libraries >= LIBRARIES)
        return cls(frozenset(able), choice)

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        if self.choice is None or not any(map(_is_dequantized, gm.graph.nodes)):
            return False
        known = known_nodes(gm)
        changed = False
        for node in list(gm.graph.nodes):
            if node in known:
                continue
            if node.target in _PRODUCTS and node.args[-1] in known:
                changed |= self._product(gm, node, self.choice)
            elif node.target is aten.convolution.default and node.args[1] in known:
                changed |= self._convolution(gm, node, self.choice)
        return changed

    def _product(self, gm: GraphModule, node: Any, choice: Integers) -> bool:
        product = product_of(node, self.devices, least_changing=_LEAST_CHANGING)
        left, right = _left(node.args[-2]), _weight(node.args[-1], 1)
        if product is None or left is None or right is None or product.depth > _MOST_SUMMED:
            return False
        *bias, x, _ = node.args
        rows, depth = x.meta["val"].shape
        dtype = left.values.meta["val"].dtype
        asked = Product(product.device, product.rows, product.depth, product.columns, dtype=dtype)
        if not statically_known_true(rows > 0) or not choice.integers(asked):
            return False
        columns = insert(gm, node, aten.permute.default, _moved(gm, node, right), [1, 0])
        whole = _whole(gm, node, columns)
        sizes = [rows, depth] if isinstance(rows, int) else None
        prepack = torch.ops.onednn.qlinear_prepack.default
        packed = insert_packed(gm, node, prepack, whole, sizes)
        result = self._result(node, choice, _AFTER_PRODUCTS)
        calls = torch.ops.onednn.qlinear_pointwise
        op = calls.tensor if isinstance(left.scale, Node) else calls.default
        args = _operands(gm, node, left, packed, _scales(gm, node, right), right.zero)
        new = insert_like(gm, node, op, *args, bias[0] if bias else None, *result.arguments)
        _put(gm, node, new, result)
        return True

    def _convolution(self, gm: GraphModule, node: Any, choice: Integers) -> bool:
        x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
        left, right, asked = _left(x), _weight(weight, 0), _asked(node)
        if transposed or left is None or right is None or asked is None:
            return False
        if asked.device not in self.devices or left.values.meta["val"].dtype != torch.uint8:
            return False
        if not choice.integers(asked):
            return False
        whole = _whole(gm, node, _moved(gm, node, right))
        scales = _scales(gm, node, right)
        window = (stride, padding, dilation, groups)
        count = x.meta["val"].shape[0]
        sizes = list(asked.images) if isinstance(count, int) else None
        prepack = torch.ops.onednn.qconv_prepack.default
        # The layout has room for sums of weights where the images have a zero point: any will do.
        given = isinstance(left.scale, Node)
        about = (0.5, 1) if given else (left.scale, left.zero)
        packed = insert_packed(gm, node, prepack, whole, scales, *about, *window, sizes)
        result = self._result(node, choice, _AFTER_CONVOLUTIONS[len(asked.images)])
        calls = torch.ops.onednn.qconv_pointwise
        op = calls.tensor if given else calls.default
        args = _operands(gm, node, left, packed, scales, right.zero)
        new = insert_like(gm, node, op, *args, bias, *window, *result.arguments)
        _put(gm, node, new, result)
        return True

    def _result(self, node: Any, choice: Integers, able: frozenset[str]) -> _Result:
        """Return what the library can do with a sum before it quantises it."""
        device, after = node.meta["val"].device.type, NOTHING
        between: list[Any] = []
        last = node
        while len(last.users) == 1:
            (last,) = last.users
            if _quantizes(last):
                return _Result(after, last, tuple(between))
            found = activation_of(last) if after is NOTHING else None
            if found is not None and not _may_follow(found, able, device, choice):
                break
            if found is not None:
                after = found
            elif last.target not in _VIEWS:
                break
            between.append(last)
        return _Result()


def _may_follow(after: Activation, able: frozenset[str], device: str, choice: Integers) -> bool:
    """Whether the library may compute a function before it quantises, which has no NaN to keep."""
    return after.attr in able and (after.attr in _EXACT or choice.allows(device, after))


def _is_dequantized(node: Node) -> bool:
    return str(node.target).startswith(f"{_NAMESPACE}dequantize_per_tensor.")


def _quantizes(node: Node) -> bool:
    """Whether a node quantises to all numbers of a type, by a known scale."""
    if str(node.target) != _QUANTIZE or len(node.args) != 6:
        return False
    _, scale, zero, low, high, dtype = node.args
    if not isinstance(scale, float) or not isinstance(zero, int):
        return False
    bounds = _RANGES.get(dtype)  # type: ignore[arg-type]  # a key that is absent
    return bounds == (low, high) and bounds[0] <= zero <= bounds[1]


def _left(x: Any) -> _Quantized | None:
    """Return what a product reads, if that is a dequantised tensor with one scale."""
    source, moves = _source(x, _MOVES)
    name = str(source.target)
    if name not in (_PER_TENSOR, _PER_TENSOR_GIVEN) or source.meta["val"].dtype != torch.float32:
        return None
    values, scale, zero = source.args[:3]
    bounds = _RANGES.get(values.meta["val"].dtype)
    if bounds is None:
        return None
    if name == _PER_TENSOR_GIVEN:
        if not (_chosen(scale) and _chosen(zero)):
            return None
    elif not bounds[0] <= zero <= bounds[1]:
        return None
    return _Quantized(values, scale, zero, moves)


def _chosen(node: Any) -> bool:
    """Whether a scale or a zero point is chosen for a tensor, and so is one of its type."""
    if not isinstance(node, Node) or node.target is not operator.getitem:
        return False
    return str(node.args[0].target) in _CHOOSE  # type: ignore[union-attr]  # of a call


def _weight(y: Any, axis: int) -> _Quantized | None:
    """Return a weight that is quantised by outputs, along its `axis`, or whole, around zero."""
    source, moves = _source(y, _TURNS)
    name = str(source.target)
    if name not in (_PER_TENSOR, _PER_CHANNEL) or source.meta["val"].dtype != torch.float32:
        return None
    values, scale, zero = source.args[:3]
    if values.meta["val"].dtype != torch.int8:
        return None
    if name == _PER_TENSOR:
        return _Quantized(values, scale, zero, moves) if zero == 0 else None
    if zero is not None and not zero.meta.get(ZEROS):
        return None
    dims = list(range(values.meta["val"].dim()))
    place = dims[source.args[3]]
    for move in moves:
        dims = _turned(move, dims)
    return _Quantized(values, scale, zero, moves) if dims[axis] == place else None


def _turned(move: Any, dims: list[int]) -> list[int]:
    """Return the order of axes after one of `_TURNS`."""
    if move.target is aten.permute.default:
        return [dims[d] for d in move.args[1]]
    if move.target is aten.clone.default:
        return dims
    a, b = move.args[1:] if move.target is aten.transpose.int else (0, -1)
    dims = list(dims)
    dims[a], dims[b] = dims[b], dims[a]
    return dims


def _source(node: Any, through: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the node whose elements another has, and what moves them, first to last."""
    moves: list[Any] = []
    while node.target in through:
        moves.append(node)
        node = node.args[0]
    return node, tuple(reversed(moves))


def _moved(gm: GraphModule, before: Node, quantized: _Quantized) -> Node:
    """Return the integers in the order in which their reader has them."""
    values: Node = quantized.values
    for move in quantized.moves:
        values = insert(gm, before, move.target, values, *move.args[1:], **move.kwargs)
    return values


def _whole(gm: GraphModule, before: Node, x: Node) -> Node:
    return insert(gm, before, aten.clone.default, x, memory_format=torch.contiguous_format)


def _scales(gm: GraphModule, before: Node, weight: _Quantized) -> Node:
    if isinstance(weight.scale, Node):
        return converted(partial(insert, gm, before), weight.scale, torch.float32)
    return insert(gm, before, aten.full.default, [1], weight.scale, dtype=torch.float32)


def _operands(
    gm: GraphModule, before: Node, left: _Quantized, packed: Node, scales: Node, zeros: Any
) -> tuple[Any, ...]:
    """Return the first arguments of a call."""
    call = partial(insert, gm, before)
    if isinstance(zeros, Node):
        zeros.meta[ASSUMED] = True
        zeros = converted(call, zeros, torch.int32)
    else:
        zeros = call(aten.full.default, [1], 0, dtype=torch.int32)
    return _moved(gm, before, left), left.scale, left.zero, packed, scales, zeros


def _asked(node: Any) -> Convolution | None:
    """Return a convolution as the library sees it, if it knows such."""
    x, weight, bias, stride, padding, dilation, _, _, groups = node.args
    images, result = x.meta["val"], node.meta["val"]
    if images.dim() not in _AFTER_CONVOLUTIONS or images.dtype != torch.float32:
        return None
    if bias is not None and bias.meta["val"].dtype != torch.float32:
        return None
    if not (result.is_contiguous() or _lies_by_points(result)):
        return None
    if not all(isinstance(n, int) for n in (*images.shape[1:], *result.shape[1:])):
        return None
    if not all(statically_known_true(n > 0) for n in (*images.shape, *result.shape)):
        return None
    summed = math.prod(weight.meta["val"].shape[1:])
    count = hint_of(images.shape[0])
    changing = not isinstance(images.shape[0], int)
    if changing and count * math.prod(result.shape[1:]) * summed < _LEAST_CHANGING:
        return None
    if summed > _MOST_SUMMED:
        return None
    window = (tuple(stride), tuple(padding), tuple(dilation), groups)
    shape = tuple(weight.meta["val"].shape)
    return Convolution(images.device.type, (count, *images.shape[1:]), shape, *window)


def _lies_by_points(images: Any) -> bool:
    return bool(images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last))


def _put(gm: GraphModule, node: Any, new: Node, result: _Result) -> None:
    """Let a call take the place of a sum, and of what follows that it computes too."""
    fake = node.meta["val"]
    stored = new
    if node.target is aten.convolution.default and not _lies_by_points(fake):
        # The library's result does.
        new.meta["val"] = fake.movedim(1, -1).contiguous().movedim(-1, 1)
        whole = torch.contiguous_format
        stored = insert_after(gm, new, aten.clone.default, new, memory_format=whole)
    if result.quantize is None:
        replace(gm, node, stored)
        return
    for changed in dict.fromkeys((new, stored)):
        changed.meta["val"] = changed.meta["val"].to(result.quantize.args[5])
    for view in result.between:
        if view.target in _VIEWS:
            stored = insert(gm, result.quantize, view.target, stored, *view.args[1:])
    replace(gm, result.quantize, stored)
    for gone in (*reversed(result.between), node):
        gm.graph.erase_node(gone)
