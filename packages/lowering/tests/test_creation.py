"""Copies between devices, and page-locked memory."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_ir.loop.nodes import DeviceCopy, Extern
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.types import DType
from gyrator_lowering import LoweringOptions, lower

REAL = Capabilities(dtypes=frozenset(d for d in DType if not d.is_complex))
TARGETS = {
    device: Target(device=device, arch="plain", kernel_backend="interpreter", capabilities=REAL)
    for device in ("cpu", "meta")
}


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize(
    "move",
    [
        lambda x, y, wait: x.to("meta", non_blocking=wait),
        lambda x, y, wait: x.to("meta", torch.float64, non_blocking=wait),
        lambda x, y, wait: y.copy_(x, non_blocking=wait),
        lambda x, y, wait: torch.ops.prims.device_put(x, "meta", wait),
    ],
)
def test_copies_keep_non_blocking(move, non_blocking):
    args = torch.ones(3), torch.ones(3, device="meta")
    gm = make_fx(lambda x, y: move(x, y, non_blocking), tracing_mode="fake")(*args)
    program = lower(gm, LoweringOptions(), TARGETS)
    (copy,) = [o for o in program.operations if isinstance(o, DeviceCopy)]
    assert copy.non_blocking == non_blocking


@pytest.mark.parametrize("fn", [torch.ones, torch.empty, torch.arange])
@pytest.mark.parametrize("pinned", [False, True])
def test_page_locked_memory_is_allocated_by_aten(fn, pinned):
    gm = make_fx(lambda x: fn(3, pin_memory=False) + x, tracing_mode="fake")(torch.ones(3))
    for node in gm.graph.nodes:
        if "pin_memory" in node.kwargs:
            node.update_kwarg("pin_memory", pinned)
    program = lower(gm, LoweringOptions(), TARGETS)
    calls = [o for o in program.operations if isinstance(o, Extern)]
    assert [dict(o.kwargs)["pin_memory"].value for o in calls] == [True] * pinned


def _copies(program):
    return [o for o in program.operations if isinstance(o, DeviceCopy)]


def _lowered(function, *args):
    gm = make_fx(function, tracing_mode="fake")(*args)
    return lower(gm, LoweringOptions(strict=True), TARGETS)


def test_device_copies_are_reused_until_a_write():
    x, t = torch.ones(3, device="meta"), torch.ones(())

    def reads(x, t):
        first = x * t + torch.clamp(x, t)
        return first, x - t

    def writes(x, t):
        first = x * t
        t.add_(1)
        return first, x * t, x - t

    assert len(_copies(_lowered(reads, x, t))) == 1
    assert len(_copies(_lowered(writes, x, t))) == 2


def test_an_index_is_copied_once_and_in_order():
    x, i = torch.ones(5, 5, device="meta"), torch.tensor([[0, 1], [2, 3]]).t()
    program = _lowered(lambda x, i: (x[i], x[:, i], x.index_put((i[0],), x[0])), x, i)
    assert len(_copies(program)) == 2
    there = {b.name for b in program.buffers if b.device.type == "meta"}
    assert {c.destination for c in _copies(program)} <= there


def test_a_copy_between_devices_without_a_write_is_no_call():
    x, y = torch.ones(3, 4, device="meta"), torch.ones(4, dtype=torch.float64)
    copy = torch.ops.aten.copy.default
    program = _lowered(lambda x, y: (copy(x, y), copy(y.expand(3, 4), x)), x, y)
    assert len(_copies(program)) == 2
    assert not any(isinstance(o, Extern) for o in program.operations)
