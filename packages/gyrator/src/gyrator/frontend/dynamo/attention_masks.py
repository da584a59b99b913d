"""Masks of scaled dot product attention that rule out eager's fused kernels.

Without a fused kernel, attention is two products in `f32` that write a score for each query and
key. A mask that excludes nothing rules out the kernels that take no mask, and one whose last
dimension is not contiguous, such as a transposed bias, rules out the others too.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from attrs import field
from torch.fx import GraphModule, Node

from gyrator.frontend.dynamo.graph import fake_of, name_of, nodes_of
from gyrator_ir.define import frozen
from gyrator_ir.types import HOST


@frozen
class _Bounds:
    """An interval that contains every element of a tensor."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def constant(self) -> bool:
        """Whether all elements are equal."""
        return self.low == self.high


_UNKNOWN = _Bounds()
_ZEROS, _ONES, _BOOLEANS = _Bounds(0, 0), _Bounds(1, 1), _Bounds(0, 1)
_LARGEST = float(1 << 40)
"""Sums of integers of at most this magnitude do not wrap around."""

_MODULES = frozenset(
    ("_operator", "torch", "torch._C._nn", "torch._ops.aten", "torch.nn.functional")
)
_ATTENTION = "scaled_dot_product_attention"
_MASK = 3
"""The position of the mask among the arguments of attention."""
_VIEWS = frozenset(
    "clone contiguous detach expand expand_as flatten getitem permute reshape select slice squeeze "
    "transpose unsqueeze view".split()
)
_CASTS = frozenset(("bool", "float", "to", "type"))
_FILLED = {
    "ones": _ONES, "new_ones": _ONES, "ones_like": _ONES,
    "zeros": _ZEROS, "new_zeros": _ZEROS, "zeros_like": _ZEROS,
}  # fmt: skip
_COMPARISONS: dict[str, tuple[Callable[[float, float], bool], bool]] = {
    "ge": (operator.ge, False),
    "gt": (operator.gt, False),
    "le": (operator.ge, True),
    "lt": (operator.gt, True),
}
"""The comparison of a lower bound with an upper bound that proves each operator, and whether its
operands are exchanged first."""
_COMBINED: dict[str, Callable[[float, float], float]] = {
    "and_": min, "bitwise_and": min, "logical_and": min,
    "or_": max, "bitwise_or": max, "logical_or": max,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
_PURE = frozenset(
    (_ATTENTION, "masked_fill", "where", *_COMPARISONS, *_COMBINED, *_ARITHMETIC, *_FILLED)
)
"""Functions that neither write to their arguments nor return views of them."""
_READERS = _PURE | _VIEWS | _CASTS


def open_fused_attention(gm: GraphModule) -> None:
    """Change masks of attention, in place, so that eager's fused kernels support them.

    A mask that is provably all true, or zero if it is added to the scores, is removed. On devices
    other than the host, whose kernels read any layout, a mask gets a contiguous last dimension.
    """
    known = _Known()
    for node in list(nodes_of(gm)):
        if _name(node) != _ATTENTION or not node.op.startswith("call_"):
            continue
        positional = len(node.args) > _MASK
        mask = node.args[_MASK] if positional else node.kwargs.get("attn_mask")
        fake = fake_of(mask)
        if not isinstance(mask, Node) or not isinstance(fake, torch.Tensor):
            continue
        no_effect = known.of(mask) == (_ONES if fake.dtype is torch.bool else _ZEROS)
        removed = no_effect and not _broadcasts(node)
        changed = None if removed else _contiguous_rows(node, mask, fake)
        if positional:
            node.update_arg(_MASK, changed)
        else:
            node.update_kwarg("attn_mask", changed)


def _broadcasts(attention: Node) -> bool:
    """Return whether the result has more batches or heads than the queries, perhaps the mask's."""
    queries = attention.args[0] if attention.args else attention.kwargs.get("query")
    shapes = (getattr(fake_of(n), "shape", ()) for n in (queries, attention))
    before, after = (tuple(map(str, shape[:-1])) for shape in shapes)
    return before != after


def _contiguous_rows(attention: Node, mask: Node, fake: torch.Tensor) -> Node:
    """Return the mask with a contiguous last dimension, copied if necessary; the copy has each
    expanded row once."""
    if fake.device.type == HOST or not fake.dim():
        return mask
    size, stride = fake.shape[-1], fake.stride(-1)
    if not isinstance(stride, int) or stride == 1 or size == 1:
        return mask
    graph = attention.graph
    once = (slice(0, 1) if isinstance(s, int) and s == 0 else slice(None) for s in fake.stride())
    index = (*list(once)[:-1], slice(None))
    with graph.inserting_before(attention):
        rows = graph.call_function(operator.getitem, (mask, index))
        copied = graph.call_method("contiguous", (rows,))
        result = graph.call_method("expand_as", (copied, mask))
    rows.meta["example_value"] = part = fake[index]
    copied.meta["example_value"] = dense = part.contiguous()
    result.meta["example_value"] = dense.expand_as(fake)
    return result


@frozen(eq=False)
class _Known:
    """What is known of the elements of tensors."""

    _bounds: dict[Node, _Bounds] = field(factory=dict, init=False)

    def of(self, x: Any) -> _Bounds:
        """Return bounds of a tensor's elements, or of a number."""
        if isinstance(x, int | float):
            return _Bounds(float(x), float(x))
        if not isinstance(x, Node) or not x.op.startswith("call_"):
            return _UNKNOWN
        if x not in self._bounds:
            self._bounds[x] = self._computed(x) if _is_only_read(x) else _UNKNOWN
        return self._bounds[x]

    def _computed(self, node: Node) -> _Bounds:
        name, args, fake = _name(node), node.args, fake_of(node)
        if not isinstance(fake, torch.Tensor) or "out" in node.kwargs:
            return _UNKNOWN
        if name == "arange":
            return _of_range(node)
        if name in _FILLED:
            return _FILLED[name]
        if name in _VIEWS or name in _CASTS:
            bounds, same = self.of(args[0]), _dtype(args[0]) is fake.dtype
            return bounds if same or (name in _CASTS and bounds in (_ZEROS, _ONES)) else _UNKNOWN
        if len(args) != 2 or node.kwargs:
            return _UNKNOWN
        a, b = map(self.of, args)
        if name in _COMPARISONS:
            proves, exchanged = _COMPARISONS[name]
            a, b = (b, a) if exchanged else (a, b)
            return _ONES if proves(a.low, b.high) else _BOOLEANS
        if name in _COMBINED and all(_dtype(x) is torch.bool for x in args):
            combine = _COMBINED[name]
            return _Bounds(combine(a.low, b.low), combine(a.high, b.high))
        if name in _ARITHMETIC:
            return _of_arithmetic(name, a, b, fake.dtype)
        return _UNKNOWN


def _of_range(node: Node) -> _Bounds:
    """Return the bounds of `arange(end)`, or of `arange(start, end)` with a constant start."""
    start = node.args[0] if len(node.args) == 2 else 0
    usual = 1 <= len(node.args) <= 2 and not {"start", "end", "step"} & node.kwargs.keys()
    exact = _dtype(node) in (torch.int64, torch.int32, torch.float64, torch.float32)
    return _Bounds(low=float(start)) if usual and exact and isinstance(start, int) else _UNKNOWN


def _of_arithmetic(name: str, a: _Bounds, b: _Bounds, dtype: torch.dtype) -> _Bounds:
    """Return the bounds of a sum, a difference or a product, if these are exact in the dtype."""
    compute = _ARITHMETIC[name]
    if a.constant and b.constant:
        value = compute(a.low, b.low)
        return _Bounds(value, value) if value in (0, 1) else _UNKNOWN
    if dtype is not torch.int64 or name == "mul":
        return _UNKNOWN
    first, last = (b.high, b.low) if name == "sub" else (b.low, b.high)
    bounds = _Bounds(compute(a.low, first), compute(a.high, last))
    finite = (x for x in (a.low, a.high, b.low, b.high) if math.isfinite(x))
    return bounds if all(abs(x) <= _LARGEST for x in finite) else _UNKNOWN


def _is_only_read(node: Node) -> bool:
    """Return whether no reader of a tensor, or of a view of it, can write to it."""
    waiting, seen = [node], {node}
    while waiting:
        for user in waiting.pop().users:
            name = _name(user)
            if user.op == "output" or user in seen:
                continue
            if "out" in user.kwargs or name not in _READERS:
                return False
            if name not in _PURE:
                seen.add(user)
                waiting.append(user)
    return True


def _name(node: Node) -> str:
    """Return the name of the torch function or method that a node calls, without the overload; an
    empty string for anything else."""
    known = node.op == "call_method" or getattr(node.target, "__module__", "") in _MODULES
    return name_of(node).partition(".")[0] if known else ""


def _dtype(value: Any) -> torch.dtype | None:
    return getattr(fake_of(value), "dtype", None)
