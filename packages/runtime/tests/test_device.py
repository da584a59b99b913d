import contextlib

import pytest
import torch
from attrs import define

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_runtime import device as module
from gyrator_runtime.accelerator import AcceleratorDevice, DeviceFacts
from gyrator_runtime.device import (
    ISA_LEVELS,
    CpuDevice,
    DeviceError,
    cpu_isa,
    isa_levels,
    machine_of,
)


@pytest.mark.parametrize(
    ("machine", "levels", "best"),
    [("aarch64", ("plain", "neon"), "neon"), ("vax", ("plain",), "plain")],
)
def test_levels_of_other_machines(monkeypatch, machine, levels, best):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("gyrator_runtime.device.cpu_flags", frozenset)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "DEFAULT")
    assert isa_levels() == levels
    assert cpu_isa() == best
    assert machine_of("avx2") == machine_of("avx512") == "x86_64"
    assert machine_of("neon") == "aarch64"
    assert machine_of("plain") == machine
    with pytest.raises(DeviceError, match="GY-DEVICE-004"):
        cpu_isa("avx2")


def test_isa_agrees_with_torch_and_obeys_the_override():
    result = cpu_isa()
    assert result in ISA_LEVELS
    capability = torch.backends.cpu.get_cpu_capability()
    torchs = {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "plain")
    assert ISA_LEVELS.index(result) >= ISA_LEVELS.index(torchs)
    assert cpu_isa("plain") == "plain"
    assert CpuDevice("plain").properties().arch == "plain"
    with pytest.raises(DeviceError) as caught:
        cpu_isa("sse9")
    assert caught.value.diagnostic.code == "GY-DEVICE-004"


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ("avx2 fma f16c avx512f avx512bw avx512dq avx512vl", "avx512"),
        ("avx2 fma f16c avx512f", "avx2"),
        ("avx2 fma", "plain"),
        ("sse2", "plain"),
    ],
)
def test_isa_of_flags(monkeypatch, flags, isa):
    monkeypatch.setattr(module, "cpu_flags", lambda: frozenset(flags.split()))
    assert cpu_isa() == isa
    for level in ISA_LEVELS[ISA_LEVELS.index(isa) + 1 :]:
        with pytest.raises(DeviceError):
            cpu_isa(level)


def test_without_proc_cpuinfo_torch_decides(monkeypatch):
    monkeypatch.setattr(module, "cpu_flags", frozenset)
    for capability, isa in (("AVX512", "avx512"), ("AVX2", "avx2"), ("DEFAULT", "plain")):
        monkeypatch.setattr(
            torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability
        )
        assert cpu_isa() == isa


def test_cpu_facts():
    cpu = CpuDevice()
    assert (cpu.type, cpu.count()) == ("cpu", 1)
    facts, memory = cpu.properties(), cpu.memory()
    assert facts.cores >= 1
    assert facts.total_memory == memory.total
    assert 0 < memory.used < memory.total
    assert 0 < memory.free <= memory.total
    for call in (cpu.properties, cpu.memory, cpu.guard, cpu.synchronize):
        with pytest.raises(DeviceError) as caught:
            call(1)
        assert caught.value.diagnostic.code == "GY-DEVICE-001"


def test_no_graphs_on_the_cpu():
    cpu = CpuDevice()
    assert not cpu.supports_graphs()
    with pytest.raises(UnsupportedError) as caught:
        cpu.capture(lambda: None)
    assert caught.value.diagnostic.code == "GY-DEVICE-002"


@define(eq=False)
class Queue:
    """A stream as torch has them."""

    device_index: int
    name: str

    def wait_stream(self, other):
        assert other is not self


class Torch:
    """A module as torch has one for a kind of device, whose captures fail in the middle."""

    class CUDAGraph:
        def replay(self):
            pass

    class Generator:
        def __init__(self, state="capturing"):
            self.state = state

        def clone_state(self):
            return Torch.Generator("plain")

        def graphsafe_set_state(self, other):
            self.state = other.state

    def __init__(self):
        self.current = Queue(0, "caller's")
        self.default_generators = [Torch.Generator()]
        self.pools = []

    def current_stream(self, index=0):
        return self.current

    def set_stream(self, stream):
        self.current = stream

    @contextlib.contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        self.pools.append(pool)
        self.current = stream
        yield  # torch leaves its stream where ending a capture fails

    def Stream(self, index):  # as torch names it
        return Queue(index, "capture's")

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def torch_module(monkeypatch):
    """Stand in for torch's module of a device that captures."""
    result = Torch()
    monkeypatch.setattr(torch, "get_device_module", lambda kind: result)
    return result


@pytest.fixture
def device(torch_module):
    """A device that torch drives, through that module."""
    facts = DeviceFacts(type="cpu", architecture=str, graphs=True)
    return AcceleratorDevice(facts)


def test_a_failed_capture_leaves_nothing_behind(torch_module, device):
    def run():
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        device.capture(run, warm=False, pool="shared")
    assert torch_module.current.name == "caller's" and torch_module.pools == ["shared"]
    assert torch_module.default_generators[0].state == "plain"


def test_each_device_is_captured_on_a_stream_of_its_own(torch_module, device):
    streams = []
    for index in (0, 1, 0):
        torch_module.current = Queue(index, "caller's")
        device.capture(lambda: streams.append(torch_module.current), warm=False)

    assert [s.device_index for s in streams] == [0, 1, 0]
    assert streams[0] is streams[2]  # memory of one stream is used again only by that stream


def test_devices_of_one_type_share_a_capturing_stream(torch_module, device):
    streams = []
    for result in (device, AcceleratorDevice(device._facts)):
        result.capture(lambda: streams.append(torch_module.current))
        torch_module.current = Queue(0, "caller's")
    assert [s.name for s in streams] == ["capture's"] * 4 and len(set(map(id, streams))) == 1


def test_a_graph_keeps_no_workspace_of_another(torch_module, device, monkeypatch):
    seen = []
    monkeypatch.setattr(
        torch._C, "_cpu_clearCublasWorkspaces", lambda: seen.append("clear"), raising=False
    )
    device.capture(lambda: seen.append("run"))
    assert seen == ["run", "clear", "run", "clear"]

    def fail():
        raise RuntimeError("not permitted")

    seen.clear()
    with pytest.raises(RuntimeError):
        device.capture(fail, warm=False)
    assert seen == ["clear", "clear"]
