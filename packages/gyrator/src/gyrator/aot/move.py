"""A graph of the host's tensors, made one of a device's: what a package is compiled of for a device
that the machine which compiles need not have."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from attrs import define, field
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from gyrator_ir.types import HOST

_CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


_HOSTS_OWN = ("mkldnn", "onednn", "fbgemm", "_for_cpu")
"""Parts of the names of ops that have no kernels elsewhere."""


def cannot_move(calls: Iterable[str]) -> tuple[str, ...]:
    """Return those ops of a moved graph that only the host has."""
    return tuple(sorted({name for name in calls if any(part in name for part in _HOSTS_OWN)}))


def move(gm: torch.fx.GraphModule, device: torch.device) -> None:
    """Let a graph, and those inside of it, compute on a device what it computes on the host."""
    moving = _Moving(device)
    for module in gm.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            if "val" in node.meta:
                node.meta["val"] = pytree.tree_map(moving.moved, node.meta["val"])
            node.args = map_aggregate(node.args, lambda v: _named(v, device))
            node.kwargs = map_aggregate(node.kwargs, lambda v: _named(v, device))
            if node.target is _CPU_ATTENTION:
                _call_any(node)
        module.graph.eliminate_dead_code()
        module.recompile()


@define(eq=False)
class _Moving:
    """Fake tensors of the host, made those of a device: what shared memory still does."""

    device: torch.device
    _bases: dict[tuple[int, torch.dtype], FakeTensor] = field(factory=dict)
    """By the storage and the element type of those that were moved."""
    _kept: list[FakeTensor] = field(factory=list)
    """What was moved: a storage's number is its own as long as it lives."""

    def moved(self, value: Any) -> Any:
        """Return a value, on the device where it was on the host."""
        if not isinstance(value, FakeTensor) or value.device.type != HOST:
            return value
        storage = value.untyped_storage()
        key = storage._cdata, value.dtype
        with value.fake_mode:
            if key not in self._bases:
                # The ops: Python's functions of these names start up the device.
                size = storage.nbytes() // value.itemsize
                make = torch.ops.aten.empty_strided.default
                self._bases[key] = make((size,), (1,), dtype=value.dtype, device=self.device)
                self._kept.append(value)
            view = torch.ops.aten.as_strided.default
            place = value.shape, value.stride(), value.storage_offset()
            return view(self._bases[key], *place)


def _named(value: Any, device: torch.device) -> Any:
    return device if isinstance(value, torch.device) and value.type == HOST else value


def _call_any(node: torch.fx.Node) -> None:
    """Put the op that has a kernel everywhere in the place of the host's."""
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
