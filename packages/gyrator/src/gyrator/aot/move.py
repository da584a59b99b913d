"""Moving a graph from the CPU to a device, to compile packages for devices that the compiling
machine may not have."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from attrs import field
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from gyrator_ir.define import define
from gyrator_ir.types import HOST

_CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


_CPU_ONLY = ("mkldnn", "onednn", "fbgemm", "_for_cpu")
"""Substrings of the names of ops that only have CPU kernels."""


def cannot_move(calls: Iterable[str]) -> tuple[str, ...]:
    """Return the ops of a moved graph that only exist on the CPU."""
    return tuple(sorted({name for name in calls if any(part in name for part in _CPU_ONLY)}))


def move(gm: torch.fx.GraphModule, device: torch.device) -> None:
    """Move a graph and its nested graphs from the CPU to a device."""
    moving = _Moving(device)
    for module in gm.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            if "val" in node.meta:
                node.meta["val"] = pytree.tree_map(moving.moved, node.meta["val"])
            node.args = map_aggregate(node.args, lambda v: _on_device(v, device))
            node.kwargs = map_aggregate(node.kwargs, lambda v: _on_device(v, device))
            if node.target is _CPU_ATTENTION:
                _use_portable_attention(node)
        module.graph.eliminate_dead_code()
        module.recompile()


@define(eq=False)
class _Moving:
    """Moves fake tensors from the CPU to a device, preserving shared memory."""

    device: torch.device
    _bases: dict[tuple[int, torch.dtype], FakeTensor] = field(factory=dict)
    """The moved storages, by original storage and dtype."""
    _originals: list[FakeTensor] = field(factory=list)
    """The original tensors, kept alive because the id of a storage is only unique during its
    lifetime."""

    def moved(self, value: Any) -> Any:
        """Return a value with CPU tensors moved to the device."""
        if not isinstance(value, FakeTensor) or value.device.type != HOST:
            return value
        storage = value.untyped_storage()
        key = storage._cdata, value.dtype
        with value.fake_mode:
            if key not in self._bases:
                # Call the ops, since torch's functions of these names initialise the device.
                size = storage.nbytes() // value.itemsize
                make = torch.ops.aten.empty_strided.default
                self._bases[key] = make((size,), (1,), dtype=value.dtype, device=self.device)
                self._originals.append(value)
            view = torch.ops.aten.as_strided.default
            layout = value.shape, value.stride(), value.storage_offset()
            return view(self._bases[key], *layout)


def _on_device(value: Any, device: torch.device) -> Any:
    return device if isinstance(value, torch.device) and value.type == HOST else value


def _use_portable_attention(node: torch.fx.Node) -> None:
    """Replace the CPU's attention op by the portable one."""
    q, k, v, *more = node.args
    mask = node.kwargs.get("attn_mask")
    with node.graph.inserting_before(node):
        called = node.graph.call_function(
            _ATTENTION, (q, k, v, mask, *more), {"scale": node.kwargs.get("scale")}
        )
    called.meta = {**node.meta, "val": node.meta["val"][0]}
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 0:
            user.replace_all_uses_with(called)
