"""GPU targets without a GPU: what they are made of, and kernels for all of them."""

import importlib.metadata
import re

import pytest
import torch
from attrs import evolve
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

from gyrator import Session
from gyrator.config import read_config
from gyrator.engine.pipeline import Stages
from gyrator.options import Options
from gyrator.targets import GROUP, LoaderContext
from gyrator.targets.cpu import CPU
from gyrator.targets.cpu import probe as probe_cpu
from gyrator.targets.gpu import AMD_GPU, INTEL_GPU, MTIA, NVIDIA_GPU, TritonDevice
from gyrator_ir.diagnostics import GyratorError
from gyrator_lowering.default import default_table
from gyrator_lowering.fx_passes import fx_pipeline
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_runtime.cache import Cache
from gyrator_runtime.progress import ProgressReporter
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_wrapper_python.stage import PythonWrapper

ARCHITECTURES = ((NVIDIA_GPU, "sm_90"), (AMD_GPU, "gfx942"), (INTEL_GPU, "pvc"), (MTIA, "mtia2"))


def normalise(x, weight):
    return torch.softmax(x * weight, -1).sum(0)


def session_for(device: TritonDevice, arch: str) -> Session:
    own = device.definition(), device.target(arch, 132)
    return Session(targets={device.device: own, "cpu": (CPU, probe_cpu(read_config()))})


def planned(function, sizes, device, arch):
    """Return the stages, the targets and the host program of a function of a device's tensors."""
    with FakeTensorMode():
        # Fake tensors of a device that this build of torch lacks cannot be made: the graph is.
        graph = make_fx(function)(*(torch.empty(s, device="meta") for s in sizes))
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def moved(value):
        return torch._subclasses.FakeTensor(fake, value.to("meta"), torch.device(device.device, 0))

    for node in graph.graph.nodes:
        value = node.meta.get("val", node.meta.get("tensor_meta"))
        node.meta["val"] = tree_map_only(torch.Tensor, moved, value)
    session = session_for(device, arch)
    stages = Stages(session.engine(Options()).context)
    targets = {d: t for d, (_, t) in session.targets.items()}
    fx_pipeline().run(graph)
    program = lower(graph, LoweringOptions(), targets, default_table())
    options = stages.scheduler_options()
    return stages, targets, plan_host(schedule(program, options, targets), options, targets)


@pytest.mark.parametrize(("device", "arch"), ARCHITECTURES, ids=lambda v: getattr(v, "name", v))
def test_every_device_gets_kernels_and_a_host_program(device, arch):
    stages, _, host = planned(normalise, ((64, 1000), (1000,)), device, arch)

    units = stages._emit(host)[0][device.device]

    text = "".join(u.text for u in units)
    assert {u.language for u in units} == {"triton"}
    assert text.count("@triton.jit") >= 2
    assert "rt.launch(" in PythonWrapper().emit(host).text


@pytest.mark.parametrize(("length", "kernels"), [(768, 1), (8192, 1), (16384, 3)])
def test_fewer_rows_than_cores_are_one_kernel_if_they_are_short(length, kernels):
    def softmaxed(x, y):
        return torch.softmax(x + y, -1)

    _, _, host = planned(softmaxed, ((100, length), (100, length)), NVIDIA_GPU, "sm_90")
    assert len(host.kernels) == kernels


def test_compilers_start_before_the_graph_is_traced():
    started = []

    class Loader:
        def warm(self, count):
            started.append(count)

    own = evolve(NVIDIA_GPU.definition(), loader=lambda target, context: Loader())
    session = Session(targets={"cuda": (own, NVIDIA_GPU.target("sm_90", 132))})
    session.engine(Options()).context.prepare(("cuda", "elsewhere"), 20)
    assert started == [3]


def test_a_compiler_that_is_missing_is_told_of_when_it_is_needed():
    def nothing(target, context):
        raise GyratorError.of("GY-BUILD-005", "no compiler")

    own = evolve(MTIA.definition(), loader=nothing)
    session = Session(targets={"mtia": (own, MTIA.target("mtia2", 1))})
    session.engine(Options()).context.prepare(("mtia",), 20)


def test_devices_that_are_absent_serve_nothing(monkeypatch):
    actual = {p.name: p.load() for p in importlib.metadata.entry_points(group=GROUP)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "hip", "mtia", "xpu"):
        assert actual[name].name == name
        assert actual[name].probe(read_config()) is None


def test_a_driver_that_nobody_knows_is_an_error(tmp_path):
    with pytest.raises(GyratorError) as caught:
        MTIA.open()
    assert caught.value.diagnostic.code == "GY-BUILD-006"


def test_a_missing_triton_is_an_error(tmp_path, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    context = LoaderContext(cache=Cache(tmp_path), progress=ProgressReporter(), threads=1)
    with pytest.raises(GyratorError) as caught:
        NVIDIA_GPU.definition().loader(NVIDIA_GPU.target("sm_90", 132), context)
    diagnostic = caught.value.diagnostic  # which packages raise as well, that have no eager mode
    assert diagnostic.code == "GY-BUILD-005" and "eager" not in diagnostic.help


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
def test_the_fused_recurrent_cell_of_gpus_is_traced_with_gradients(bias):
    def step(gates, hidden_gates, hidden, *biases):
        leaves = [x.detach().requires_grad_() for x in (gates, hidden_gates, hidden, *biases)]
        after = torch.ops.aten._thnn_fused_gru_cell(*leaves)[0]
        return after, *torch.autograd.grad(after.sum(), leaves)

    sizes = (5, 12), (5, 12), (5, 4), *(((12,), (12,)) if bias else ())
    given = [torch.empty(s, device="meta") for s in sizes]
    assert [r.shape for r in step(*given)] == [(5, 4), *sizes]

    host = planned(step, sizes, NVIDIA_GPU, "sm_90")[2]
    words = re.findall(r"\w+", str(host))
    assert "_thnn_fused_gru_cell" in words and "_thnn_fused_gru_cell_backward" in words
