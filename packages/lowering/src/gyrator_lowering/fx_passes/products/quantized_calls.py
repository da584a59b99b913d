"""`quantized-calls`: products and convolutions of quantised tensors are computed in integers.

A quantised graph multiplies dequantised tensors in `float32`. If the weight is known, oneDNN can
use the integers directly: it accumulates exact products, scales each sum once, adds the bias,
applies an elementwise function, and quantises the result if nothing else reads it. These sums are
more accurate than sums of rounded numbers.
"""

import math
import operator
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import torch
from attrs import field
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.folding import ASSUMED, ZEROS
from gyrator_lowering.fx_passes.constants import constant_nodes
from gyrator_lowering.fx_passes.insert import (
    contiguous,
    converted,
    insert,
    insert_after,
    insert_like,
    insert_packed,
    replace,
)
from gyrator_lowering.fx_passes.products.linear_calls import (
    LIBRARIES,
    Product,
    devices_with,
    product_of,
)
from gyrator_lowering.fx_passes.products.post_ops import NOTHING, Activation, activation_of
from gyrator_lowering.torch_bridge.graphs import is_channels_last
from gyrator_lowering.torch_bridge.symbols import hint_of

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_MOVES = (
    *_VIEWS, aten.clone.default, aten.alias.default, aten.permute.default, aten.transpose.int,
    aten.t.default, aten.slice.Tensor, aten.select.int, aten.unsqueeze.default,
    aten.squeeze.dim,
)  # fmt: skip
"""Ops that change no element."""
_WEIGHT_VIEWS = (aten.clone.default, aten.permute.default, aten.t.default, aten.transpose.int)
"""Ops allowed between a weight and its use."""
_RANGES = MappingProxyType({torch.uint8: (0, 255), torch.int8: (-128, 127)})
_NAMESPACE = "quantized_decomposed."
_PER_TENSOR = f"{_NAMESPACE}dequantize_per_tensor.default"
_PER_TENSOR_DYNAMIC = f"{_NAMESPACE}dequantize_per_tensor.tensor"
_PER_CHANNEL = f"{_NAMESPACE}dequantize_per_channel.default"
_QUANTIZE = f"{_NAMESPACE}quantize_per_tensor.default"
_CHOOSE = tuple(f"{_NAMESPACE}choose_qparams{kind}.tensor" for kind in ("", "_symmetric"))
_MOST_SUMMED = 1 << 16
"""The number of byte products whose sum fits into 32 bits."""
_LEAST_CHANGING = 1 << 26
"""The minimum number of multiplications of products with symbolic sizes: see `linear-calls`."""
_EXACT = ("relu", "hardtanh")
"""Functions that do not round."""
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
    """The shape of the images; a symbolic batch size counts as in the traced example."""
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Integers(Protocol):
    """Measurements of a machine's integer products."""

    def integers(self, call: Product | Convolution) -> bool:
        """Return whether a product, whose `dtype` is that of its left matrix, or a convolution is
        correct and faster in integers."""
        ...

    def allows(self, device: str, after: Activation) -> bool:
        """Return whether oneDNN computes a function as accurately as required, on a device."""
        ...


@frozen(eq=False)
class _Quantized:
    """A dequantised tensor."""

    values: Any
    scale: Any
    """A number or a node; for weights a node."""
    zero: Any
    moves: tuple[Any, ...]
    """The ops between the dequantised tensor and its reader, first to last."""


@frozen(eq=False)
class _Result:
    """The result of a sum: the function that the library applies, and the dtype that it stores."""

    after: Activation = NOTHING
    quantize: Any = None
    """The node that quantises it; None for a float result."""
    between: tuple[Any, ...] = ()
    """The nodes between the sum and that node."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The last arguments of a call."""
        stored = (1.0, 0, torch.float32)
        if self.quantize is not None:
            stored = (*self.quantize.args[1:3], self.quantize.args[5])
        return (*stored, *self.after.arguments)


@frozen
class QuantizedCalls:
    """Call oneDNN for products of quantised tensors and known weights."""

    name: ClassVar[str] = "quantized-calls"
    devices: frozenset[str] = frozenset()
    """Device types whose library supports it."""
    choice: Integers | None = field(default=None, repr=False)
    """Decides whether it is faster; None for never."""

    @classmethod
    def of(cls, targets: Mapping[str, Target], choice: Integers | None) -> "QuantizedCalls":
        """Return the pass for some targets, by device type."""
        return cls(devices_with(LIBRARIES, targets), choice)

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        if self.choice is None or not any(map(_is_dequantized, gm.graph.nodes)):
            return False
        constants = constant_nodes(gm)
        changed = False
        for node in list(gm.graph.nodes):
            if node in constants:
                continue
            if node.target in _PRODUCTS and node.args[-1] in constants:
                changed |= self._product(gm, node, self.choice)
            elif node.target is aten.convolution.default and node.args[1] in constants:
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
        quantized_product = Product(
            product.device, product.rows, product.depth, product.columns, dtype=dtype
        )
        if not statically_known_true(rows > 0) or not choice.integers(quantized_product):
            return False
        columns = insert(gm, node, aten.permute.default, _moved(gm, node, right), [1, 0])
        weight = contiguous(partial(insert, gm, node), columns)
        sizes = [rows, depth] if isinstance(rows, int) else None
        prepack = torch.ops.onednn.qlinear_prepack.default
        packed = insert_packed(gm, node, prepack, weight, sizes)
        result = self._result(node, choice, _AFTER_PRODUCTS)
        calls = torch.ops.onednn.qlinear_pointwise
        op = calls.tensor if isinstance(left.scale, Node) else calls.default
        args = _operands(gm, node, left, packed, _scales(gm, node, right), right.zero)
        new = insert_like(gm, node, op, *args, bias[0] if bias else None, *result.arguments)
        _put(gm, node, new, result)
        return True

    def _convolution(self, gm: GraphModule, node: Any, choice: Integers) -> bool:
        x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
        left, right, convolution = _left(x), _weight(weight, 0), _convolution_of(node)
        if transposed or left is None or right is None or convolution is None:
            return False
        if convolution.device not in self.devices or left.values.meta["val"].dtype != torch.uint8:
            return False
        if not choice.integers(convolution):
            return False
        values = contiguous(partial(insert, gm, node), _moved(gm, node, right))
        scales = _scales(gm, node, right)
        window = (stride, padding, dilation, groups)
        count = x.meta["val"].shape[0]
        sizes = list(convolution.images) if isinstance(count, int) else None
        prepack = torch.ops.onednn.qconv_prepack.default
        # With a zero point, the layout has room for sums of weights; its value does not matter.
        is_dynamic = isinstance(left.scale, Node)
        quantization = (0.5, 1) if is_dynamic else (left.scale, left.zero)
        packed = insert_packed(gm, node, prepack, values, scales, *quantization, *window, sizes)
        result = self._result(node, choice, _AFTER_CONVOLUTIONS[len(convolution.images)])
        calls = torch.ops.onednn.qconv_pointwise
        op = calls.tensor if is_dynamic else calls.default
        args = _operands(gm, node, left, packed, scales, right.zero)
        new = insert_like(gm, node, op, *args, bias, *window, *result.arguments)
        _put(gm, node, new, result)
        return True

    def _result(self, node: Any, choice: Integers, able: frozenset[str]) -> _Result:
        """Return what the library can do with a sum before quantising it."""
        device, after = node.meta["val"].device.type, NOTHING
        between: list[Any] = []
        last = node
        while len(last.users) == 1:
            (last,) = last.users
            if _quantizes(last):
                return _Result(after, last, tuple(between))
            activation = activation_of(last) if after is NOTHING else None
            if activation is not None and not _may_follow(activation, able, device, choice):
                break
            if activation is not None:
                after = activation
            elif last.target not in _VIEWS:
                break
            between.append(last)
        return _Result()


def _may_follow(after: Activation, able: frozenset[str], device: str, choice: Integers) -> bool:
    """Return whether the library may apply a function before quantising, which has no NaN to
    keep."""
    return after.attr in able and (after.attr in _EXACT or choice.allows(device, after))


def _is_dequantized(node: Node) -> bool:
    return str(node.target).startswith(f"{_NAMESPACE}dequantize_per_tensor.")


def _quantizes(node: Node) -> bool:
    """Return whether a node quantises to the full range of a dtype, with a constant scale."""
    if str(node.target) != _QUANTIZE or len(node.args) != 6:
        return False
    _, scale, zero, low, high, dtype = node.args
    if not isinstance(scale, float) or not isinstance(zero, int):
        return False
    bounds = _RANGES.get(dtype)  # type: ignore[arg-type]  # a key that is absent
    return bounds == (low, high) and bounds[0] <= zero <= bounds[1]


def _left(x: Any) -> _Quantized | None:
    """Return the dequantised tensor with a single scale that a product reads, if it reads one."""
    source, moves = _source(x, _MOVES)
    name = str(source.target)
    if name not in (_PER_TENSOR, _PER_TENSOR_DYNAMIC) or source.meta["val"].dtype != torch.float32:
        return None
    values, scale, zero = source.args[:3]
    bounds = _RANGES.get(values.meta["val"].dtype)
    if bounds is None:
        return None
    if name == _PER_TENSOR_DYNAMIC:
        if not (_is_chosen(scale) and _is_chosen(zero)):
            return None
    elif not bounds[0] <= zero <= bounds[1]:
        return None
    return _Quantized(values, scale, zero, moves)


def _is_chosen(node: Any) -> bool:
    """Return whether a scale or a zero point was computed for a tensor, and so fits its dtype."""
    if not isinstance(node, Node) or node.target is not operator.getitem:
        return False
    return str(node.args[0].target) in _CHOOSE  # type: ignore[union-attr]  # of a call


def _weight(y: Any, axis: int) -> _Quantized | None:
    """Return a weight that is quantised symmetrically, by outputs along `axis` or with one
    scale."""
    source, moves = _source(y, _WEIGHT_VIEWS)
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
    channel_axis = dims[source.args[3]]
    for move in moves:
        dims = _permuted(move, dims)
    return _Quantized(values, scale, zero, moves) if dims[axis] == channel_axis else None


def _permuted(move: Any, dims: list[int]) -> list[int]:
    """Return the order of axes after one of `_WEIGHT_VIEWS`."""
    if move.target is aten.permute.default:
        return [dims[d] for d in move.args[1]]
    if move.target is aten.clone.default:
        return dims
    a, b = move.args[1:] if move.target is aten.transpose.int else (0, -1)
    dims = list(dims)
    dims[a], dims[b] = dims[b], dims[a]
    return dims


def _source(node: Any, through: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the node that has a node's elements before these ops, and the ops, first to last."""
    moves: list[Any] = []
    while node.target in through:
        moves.append(node)
        node = node.args[0]
    return node, tuple(reversed(moves))


def _moved(gm: GraphModule, before: Node, quantized: _Quantized) -> Node:
    """Return the integers in the layout in which their reader sees them."""
    values: Node = quantized.values
    for move in quantized.moves:
        values = insert(gm, before, move.target, values, *move.args[1:], **move.kwargs)
    return values


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


def _convolution_of(node: Any) -> Convolution | None:
    """Return a convolution as the library sees it, if it is supported."""
    x, weight, bias, stride, padding, dilation, _, _, groups = node.args
    images, result = x.meta["val"], node.meta["val"]
    if images.dim() not in _AFTER_CONVOLUTIONS or images.dtype != torch.float32:
        return None
    if bias is not None and bias.meta["val"].dtype != torch.float32:
        return None
    if not (result.is_contiguous() or is_channels_last(result)):
        return None
    if not all(isinstance(n, int) for n in (*images.shape[1:], *result.shape[1:])):
        return None
    if not all(statically_known_true(n > 0) for n in (*images.shape, *result.shape)):
        return None
    summed = math.prod(weight.meta["val"].shape[1:])
    count = hint_of(images.shape[0]) or 0
    is_dynamic = not isinstance(images.shape[0], int)
    if is_dynamic and count * math.prod(result.shape[1:]) * summed < _LEAST_CHANGING:
        return None
    if summed > _MOST_SUMMED:
        return None
    window = (tuple(stride), tuple(padding), tuple(dilation), groups)
    shape = tuple(weight.meta["val"].shape)
    return Convolution(images.device.type, (count, *images.shape[1:]), shape, *window)


def _put(gm: GraphModule, node: Any, new: Node, result: _Result) -> None:
    """Replace a sum, and the nodes after it that the library computes too, by a call."""
    fake = node.meta["val"]
    stored = new
    if node.target is aten.convolution.default and not is_channels_last(fake):
        # The library returns a channels-last result.
        new.meta["val"] = fake.movedim(1, -1).contiguous().movedim(-1, 1)
        stored = contiguous(partial(insert_after, gm, new), new)
    if result.quantize is None:
        replace(gm, node, stored)
        return
    for changed in dict.fromkeys((new, stored)):
        changed.meta["val"] = changed.meta["val"].to(result.quantize.args[5])
    for view in result.between:
        if view.target in _VIEWS:
            stored = insert(gm, result.quantize, view.target, stored, *view.args[1:])
    replace(gm, result.quantize, stored)
    for replaced in (*reversed(result.between), node):
        gm.graph.erase_node(replaced)
