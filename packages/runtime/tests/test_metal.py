"""Metal kernels are handed tensors, by a `torch.mps` that stands in for a Mac's."""

from types import SimpleNamespace

import pytest
import torch

from gyrator_ir.expr import Sym
from gyrator_ir.source import Configuration, KernelArgument, KernelSource, TranslationUnit
from gyrator_runtime.device import DeviceError
from gyrator_runtime.metal import MetalDevice, MetalLoader, load_kernels
from gyrator_runtime.native.program import Buffer, Launch, PlanProgram, SizeArg

ARGUMENTS = tuple(
    KernelArgument(name, type)
    for name, type in (("x", "device float*"), ("s0", "constant long&"), ("s1", "constant long&"))
)
UNIT = TranslationUnit(
    "unit0", "metal", "kernel void f ...",
    tuple(
        KernelSource(
            name, name, "", checks=checks, arguments=ARGUMENTS,
            candidates=(Configuration((("THREADS", 8), ("LANES", 1))),),
            grid=((Sym("s0") + 7) // 8,),
        )
        for name, checks in (("f", ()), ("g", (None,)))
    ),
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch):
    """What kernels are called with; they double what they are given, and `g` finds a fault."""
    seen = []

    def f(x, *more, threads, group_size):
        seen.append((x.data_ptr(), more, threads, group_size))
        base = torch.empty(0).set_(x.untyped_storage())
        start = x.storage_offset() * x.element_size() // 4
        base[start : start + more[0]] *= 2

    def g(x, *more, threads, group_size):
        more[-1].fill_(1)
        seen.append(more)

    def compile_shader(text):
        seen.append(text)
        return SimpleNamespace(f=f, g=g)

    monkeypatch.setattr(torch.mps, "compile_shader", compile_shader)
    return seen


def test_a_plan_hands_tensors_to_kernels(runner, calls):
    kernels = MetalLoader().submit([UNIT]).addresses()
    launch = Launch(kernels["f"], (Buffer(0, 12),), (SizeArg(1), 5))
    plan = runner.plan(PlanProgram(2, 2, (launch,)))
    x = torch.arange(20.0, requires_grad=True)

    plan(x[1:], 9)
    plan(x[1:], 0)

    want = torch.arange(20.0)
    want[4:13] *= 2
    assert torch.equal(x.detach(), want)
    text, (address, sizes, threads, group) = calls
    assert text == UNIT.text and address == x.data_ptr() + 16
    assert (sizes, threads, group) == ((9, 5), (16, 1, 1), (8, 1, 1))


def test_what_a_kernel_finds_is_raised(runner, calls):
    kernels = MetalLoader().submit([UNIT]).addresses()
    checks = ((IndexError, "index out of bounds"),)
    launch = Launch(kernels["g"], (Buffer(0),), (9, 5), checks)
    with pytest.raises(IndexError, match="out of bounds"):
        runner.plan(PlanProgram(1, 1, (launch,)))(torch.ones(9))
    assert calls[1][:2] == (9, 5)


def test_a_stored_library_is_compiled_again(calls, tmp_path):
    (library,) = MetalLoader().submit([UNIT]).libraries()
    assert library.symbols == ("f", "g") and library.source == UNIT.text
    (tmp_path / "lib").write_bytes(library.data)

    kernels = load_kernels(tmp_path / "lib", library.symbols)

    x = torch.ones(9)
    assert kernels["f"].launch([x], [0], (9, 5)) == 0 and x.sum() == 18
    assert calls[0] == UNIT.text


def test_the_device_asks_torch(monkeypatch):
    answers = {"device_count": 1, "recommended_max_memory": 100, "driver_allocated_memory": 30}
    for name, value in answers.items():
        monkeypatch.setattr(torch.mps, name, lambda value=value: value)
    waited = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append(0))
    device = MetalDevice("mps")
    assert (device.type, device.count(), device.properties().total_memory) == ("mps", 1, 100)
    assert (device.memory().free, device.memory().used) == (70, 30)
    device.synchronize()
    with device.guard(0), pytest.raises(DeviceError, match="GY-DEVICE-001"):
        device.guard(1)
    assert waited == [0]
