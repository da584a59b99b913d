"""Matrix-vector products, whose time is that of reading the matrix.

Libraries tune their kernels for products that keep the matrix units busy. Products with a vector
are memory-bound: generated kernels read the matrix as fast as a copy does, and can fuse the
epilogue and other products of the same vector into the same launch.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gyrator_ir.target import Target
from gyrator_lowering.chosen_calls import chosen_calls

aten = torch.ops.aten
_OPS = frozenset((aten.mm.default, aten.addmm.default, aten.mv.default, aten.addmv.default))


def thin_products(gm: GraphModule, targets: Mapping[str, Target]) -> frozenset[str]:
    """Return the names of a graph's products that kernels on these targets should compute.

    They have a single row or column, and a matrix that is contiguous along the reduced axis.
    """
    devices = {device for device, t in targets.items() if t.heuristics.thin_products}
    return chosen_calls(gm, _OPS, partial(_thin, devices))


def _thin(devices: set[str], _: Node, x: Tensor, y: Tensor) -> bool:
    if x.device.type not in devices or not all(isinstance(n, int) for n in (*x.shape, *y.shape)):
        return False
    if y.ndim == 1 or y.shape[1] == 1:
        return bool(x.stride(1) == 1)
    return bool(x.shape[0] == 1 and y.stride(0) == 1)
