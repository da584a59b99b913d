"""Products of integers, for which CPU libraries have no blocked or vectorised kernels.

ATen multiplies matrices of `int64`, and bytes into `int32`, by plain loops. Its `int32` products
use vectors, but no tiles. Integer sums are exact in any order: kernels return the same bits.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gyrator_ir.target import Target
from gyrator_lowering.chosen_calls import chosen_calls

aten = torch.ops.aten
_BYTES = aten._int_mm.default
_OPS = frozenset((
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.mv.default,
    aten.addmv.default, aten.dot.default, _BYTES,
))  # fmt: skip
_BYTE_LIBRARY = "onednn-int8"
"""The library of `Capabilities.libraries` that multiplies bytes by dot-product instructions."""
_DEPTH = 8
"""The minimum depth for kernels, where the depth matters."""
_ROWS, _COLUMNS = 4, 8
"""The minimum size of products that kernels tile for vector registers."""


def integer_products(gm: GraphModule, targets: Mapping[str, Target]) -> frozenset[str]:
    """Return the names of a graph's products of integers that kernels on these targets should
    compute."""
    able = {device: t for device, t in targets.items() if t.heuristics.integer_products}
    return chosen_calls(gm, _OPS, partial(_faster, able))


def _faster(targets: Mapping[str, Target], node: Node, x: Tensor, y: Tensor) -> bool:
    target = targets.get(x.device.type)
    if target is None or x.layout is not torch.strided or y.layout is not torch.strided:
        return False
    if any(isinstance(a, float) for a in node.kwargs.values()):
        return False  # eager mode refuses factors that are not integers
    if node.target == _BYTES:
        return _BYTE_LIBRARY not in target.capabilities.libraries
    depth = x.shape[-1]
    if x.dtype == torch.int64:
        # Sums along short rows of vectors gain nothing.
        along = x.stride(-1) == 1 and y.stride(-2 if y.ndim > 1 else -1) == 1
        return not (along and isinstance(depth, int) and depth < _DEPTH)
    sizes = (depth, x.shape[-2], y.shape[-1]) if y.ndim > 1 else ()
    least = (_DEPTH, _ROWS, _COLUMNS)
    return (
        x.dtype == torch.int32
        and len(sizes) == len(least)
        and all(isinstance(n, int) and n >= few for n, few in zip(sizes, least, strict=True))
    )
