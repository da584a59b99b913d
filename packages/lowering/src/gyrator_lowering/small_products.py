"""Batches of products of small matrices, which generated kernels compute in one loop.

CPU libraries prepare each product of a batch, which takes longer than its sums if the matrices are
small. Kernels also fuse what follows.
"""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gyrator_ir.target import Target
from gyrator_lowering.chosen_calls import chosen_calls

aten = torch.ops.aten
_OPS = frozenset((aten.bmm.default, aten.baddbmm.default))
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_MAX_WORK = 1 << 12
"""The maximum number of multiplications of a product. Up to twice as many, kernels still win."""


def small_products(gm: GraphModule, targets: Mapping[str, Target]) -> frozenset[str]:
    """Return the names of a graph's batched products of floats that kernels on these targets
    should compute: of matrices of constant, small sizes. The number of products may change."""
    devices = {device for device, t in targets.items() if t.heuristics.register_tiles}
    return chosen_calls(gm, _OPS, partial(_small, devices))


def _small(devices: set[str], _: Node, x: Tensor, y: Tensor) -> bool:
    if x.device.type not in devices or x.dtype not in _DTYPES:
        return False
    if x.layout is not torch.strided or y.layout is not torch.strided:
        return False
    sizes = (x.shape[1], x.shape[2], y.shape[2])
    return all(isinstance(n, int) for n in sizes) and math.prod(sizes) <= _MAX_WORK
