"""`split-product-bias`: kernels that read a matrix product add its bias.

CPU libraries fill the result with the bias first, and then accumulate the product; for few rows
of `float32`, cuBLAS has quicker kernels without a bias. If kernels read the result anyway, they can
add the bias for free.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.insert import insert, replace
from gyrator_lowering.fx_passes.products.linear_calls import LIBRARIES, devices_with

aten, mkl, mkldnn = torch.ops.aten, torch.ops.mkl, torch.ops.mkldnn

_CUBLAS = frozenset({"cublas"})
_VIEWS = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.transpose.int,
    aten.slice.Tensor, aten.select.int, aten.unsqueeze.default, aten.squeeze.dim,
})  # fmt: skip
_KERNELS = frozenset({
    aten.clone.default, aten.cat.default, aten.roll.default, aten.native_layer_norm.default,
    aten._softmax.default, aten.var_mean.correction, aten.mean.dim, aten.sum.dim_IntList,
})  # fmt: skip
"""Ops that kernels compute, beside pointwise ones."""
_EXACT = (torch.float32, torch.float64)
"""Dtypes in which adding the bias after rounding the product is as accurate as before."""


def _addmm(node: Any) -> tuple[Any, tuple[Any, ...]]:
    bias, *matrices = node.args
    return (None, ()) if node.kwargs else (bias, (aten.mm.default, *matrices))


def _onednn(node: Any) -> tuple[Any, tuple[Any, ...]]:
    x, weight, bias, attr, *rest = node.args
    plain = (node.target, x, weight, None, attr, *rest)
    return (bias, plain) if attr == "none" else (None, ())


def _mkl(node: Any) -> tuple[Any, tuple[Any, ...]]:
    x, packed, weight, bias, rows = node.args
    return bias, (node.target, x, packed, weight, None, rows)


_SPLITTERS: Mapping[Any, Callable[[Any], tuple[Any, tuple[Any, ...]]]] = MappingProxyType({
    aten.addmm.default: _addmm,
    mkldnn._linear_pointwise.default: _onednn,
    **({mkl._mkl_linear.default: _mkl} if torch._C.has_mkl else {}),
})  # fmt: skip
"""Functions that split a call into its bias, or None if that is impossible, and a call without
it."""


@frozen
class SplitProductBias:
    """Split biases from products that kernels read."""

    name: ClassVar[str] = "split-product-bias"
    devices: frozenset[str] = frozenset()
    """Device types whose libraries take longer with a bias."""

    @classmethod
    def of(cls, targets: Mapping[str, Target]) -> "SplitProductBias":
        """Return the pass for some targets, by device type."""
        return cls(devices_with(LIBRARIES, targets) | devices_with(_CUBLAS, targets))

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in list(gm.graph.nodes):
            if node.target in _SPLITTERS and self._is_profitable(node):
                changed |= _split(gm, node)
        return changed

    def _is_profitable(self, node: Any) -> bool:
        return node.meta["val"].device.type in self.devices and kernels_may_add(node)


def kernels_may_add(node: Node) -> bool:
    """Return whether all readers of a product are kernels that may add its bias."""
    return node.meta["val"].dtype in _EXACT and _only_kernels_read(node)


def _only_kernels_read(node: Node) -> bool:
    if not node.users:
        return False
    return all(
        _only_kernels_read(user) if user.target in _VIEWS else _is_kernel(user)
        for user in node.users
    )


def _is_kernel(node: Any) -> bool:
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return node.target in _KERNELS or pointwise


def _split(gm: GraphModule, node: Any) -> bool:
    bias, call = _SPLITTERS[node.target](node)
    if bias is None:
        return False
    fake = node.meta["val"]
    with gm.graph.inserting_before(node):
        plain = gm.graph.call_function(call[0], call[1:])
    plain.meta = {k: v for k, v in node.meta.items() if k != "tensor_meta"}
    total = insert(gm, node, aten.add.Tensor, plain, bias)
    assert total.meta["val"].shape == fake.shape
    replace(gm, node, total)
    return True
