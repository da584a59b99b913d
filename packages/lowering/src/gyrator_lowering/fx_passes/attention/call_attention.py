"""`call-attention`: attention written as separate ops becomes a call of flash attention or of
cuDNN's attention, whichever eager prefers.

    softmax(q @ k^T * scale) @ v, the softmax in a type of its own or not

As two products and a softmax, attention writes and reads a score for each query and key. In
training, the probabilities have other readers than the second product, so that the pass does not
apply.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.insert import contiguous, insert, replace
from gyrator_lowering.fx_passes.products.linear_calls import devices_with

aten = torch.ops.aten

_LIBRARIES = frozenset({"flash_attention"})
_CALLS = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
_HALVES = (torch.float16, torch.bfloat16)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
_MOST_BATCHES = 65535
_WIDEST = 256


@frozen
class _AttentionPattern:
    """Two products with a softmax between them."""

    operands: tuple[Any, Any, Any]
    """Queries, transposed keys and values: `[..., queries, width]`, `[..., width, keys]` and `[...,
    keys, width]`."""
    scale: float


@frozen
class CallAttention:
    """Call flash attention for batched products with a softmax between them."""

    name: ClassVar[str] = "call-attention"
    devices: frozenset[str] = frozenset()
    """Device types that have the call."""
    least: int = 64
    """The minimum number of queries and of keys: with fewer, the scores are too few to matter."""

    @classmethod
    def of(cls, targets: Mapping[str, Target], **options: int) -> "CallAttention":
        """Return the pass for some targets, by device type."""
        return cls(devices_with(_LIBRARIES, targets), **options)

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in list(gm.graph.nodes):
            if node.target is aten.bmm.default and node.meta["val"].device.type in self.devices:
                flat = _match(node)
                forms = () if flat is None else (_unflattened(flat), flat)
                pattern = next((x for x in forms if x is not None and self._fits(x)), None)
                changed |= pattern is not None and _call(gm, pattern, node)
        gm.graph.eliminate_dead_code()
        return changed

    def _fits(self, pattern: _AttentionPattern) -> bool:
        """Return whether the call supports these operands, and is profitable."""
        q, k, v = (n.meta["val"] for n in pattern.operands)
        numbers = (n for x in (q, k, v) for n in (*x.shape, *x.stride()))
        if q.dtype not in _HALVES or not all(isinstance(n, int) for n in numbers):
            return False
        queries, width = q.shape[-2:]
        return (
            k.shape[:-2] == q.shape[:-2] == v.shape[:-2]
            and v.dtype == q.dtype
            and v.shape[-1] == width
            and width % 8 == 0
            and 0 < width <= _WIDEST
            and math.prod(q.shape[:-2]) > 0
            and max(q.shape[:-2]) <= _MOST_BATCHES
            and min(queries, k.shape[-1]) >= max(self.least, 1)
            and (q.stride(-1), k.stride(-2), v.stride(-1)) == (1, 1, 1)
        )


def _match(last: Any) -> _AttentionPattern | None:
    """Match the pattern that ends in a batched product, if its left factor is a softmax."""
    chain = _producers(last.args[0])
    node = next((n for n in chain if n.target not in _CASTS), None)
    if node is None or node.target is not aten._softmax.default:
        return None
    x, dim, _ = node.args
    if dim not in (-1, node.meta["val"].dim() - 1):
        return None
    scale = 1.0
    for node in _producers(x):
        if node.target is aten.bmm.default:
            return _AttentionPattern((*node.args, last.args[1]), scale)
        if node.target is aten.mul.Tensor and _number(node):
            scale *= node.args[1]
        elif node.target is aten.div.Tensor and _number(node) and node.args[1]:
            scale /= node.args[1]
        elif node.target not in _CASTS:
            return None
    return None


def _unflattened(pattern: _AttentionPattern) -> _AttentionPattern | None:
    """Return the pattern with 4-d operands of batches and heads, before these were flattened
    (perhaps by a copy), which is the layout that flash attention is built for."""
    q, k, v = (
        source.args[0] if source.target is aten.clone.default else source
        for source in (n.args[0] if n.target in _VIEWS else n for n in pattern.operands)
    )
    for unflattened, flat in zip((q, k, v), pattern.operands, strict=True):
        fake = unflattened.meta["val"]
        if fake.dim() != 4 or fake.shape[-2:] != flat.meta["val"].shape[-2:]:
            return None
    return _AttentionPattern((q, k, v), pattern.scale)


def _number(node: Any) -> bool:
    factor = node.args[1]
    return isinstance(factor, (int, float)) and math.isfinite(factor)


def _producers(node: Any) -> Iterator[Any]:
    """Yield a node and its chain of producers, except views, as long as each has a single user and
    keeps the last two dimensions and a float dtype."""
    rows = node.meta["val"].shape[-2:]
    while isinstance(node, Node) and node.op == "call_function" and len(node.users) == 1:
        fake = node.meta["val"]
        if fake.shape[-2:] != rows or not fake.is_floating_point():
            return
        if node.target not in _VIEWS:
            yield node
        node = node.args[0]


def _call(gm: GraphModule, pattern: _AttentionPattern, last: Any) -> bool:
    """Replace the last product by the call that eager prefers; return whether there is one."""
    call: Callable[..., Node] = partial(insert, gm, last)
    fake = last.meta["val"]
    q, k, v = pattern.operands
    k = call(aten.transpose.int, k, -2, -1)
    flat = q.meta["val"].dim() == 3
    # Flat operands get one head per batch, so that the result is dense, as the product's is.
    operands = [call(aten.unsqueeze.default, x, 1) if flat else x for x in (q, k, v)]
    traced = make_fx(partial(scaled_dot_product_attention, scale=pattern.scale))
    preferred = traced(*(x.meta["val"] for x in operands)).graph.nodes
    chosen = next((n for n in preferred if n.target in _CALLS), None)
    if chosen is None:
        return False
    attention = call(chosen.target, *operands, *chosen.args[3:], **chosen.kwargs)
    result = call(operator.getitem, attention, 0)
    if flat:
        result = call(aten.squeeze.dim, result, 1)
    if not result.meta["val"].is_contiguous():
        result = contiguous(call, result)
    if not flat:
        result = call(aten.view.default, result, list(fake.shape))
    replace(gm, last, result)
    return True
