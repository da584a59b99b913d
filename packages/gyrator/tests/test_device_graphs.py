"""Which programs a captured graph stands for, and candidates for measuring, without a device."""

import pytest
import torch
from test_gpu_targets import session_for
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.autotune import alternatives
from gyrator.device_graphs import capturable, replayed
from gyrator.options import Options
from gyrator.pipeline import Pipeline
from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_lowering.default import default_table
from gyrator_lowering.fx_passes import PASSES, run_passes
from gyrator_lowering.stage import lower
from gyrator_runtime.graphs import GraphReplay
from gyrator_scheduler.stage import plan_host, schedule


def planned(function, *sizes):
    """Return the pipeline, schedule and host program of a function of GPU tensors."""
    with FakeTensorMode():
        graph = make_fx(function)(*(torch.empty(s, device="meta") for s in sizes))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            on_device = FakeTensor(fake, value.to("meta"), torch.device("cuda", 0))
            node.meta["val"] = on_device
    session = session_for(NVIDIA_GPU, "sm_90")
    pipeline = Pipeline(session.engine(Options()))
    targets = {d: t for d, (_, t) in session.targets.items()}
    run_passes(graph, PASSES)
    program = lower(graph, pipeline._lowering_options(), targets, default_table())
    options = pipeline._scheduler_options()
    made = schedule(program, options, targets)
    return pipeline, made, plan_host(made, options, targets)


def test_a_program_on_one_device_can_be_captured():
    _, made, host = planned(lambda x, w: (x * w).sum(0), (64, 100), (100,))
    assert capturable(made, host) == {"device": "cuda", "mutated": []}


def test_what_is_written_to_is_known():
    _, made, host = planned(lambda x, w: (w.copy_(x.sum(0)), x + 1), (64, 100), (100,))
    assert capturable(made, host) == {"device": "cuda", "mutated": [1]}


@pytest.mark.parametrize("facts", [None, {"device": "cpu", "mutated": []}])
def test_other_programs_run_as_they_are(facts):
    def plan(args):
        return args

    device = NVIDIA_GPU.definition().device
    devices = {"cuda": lambda: device(NVIDIA_GPU.target("sm_90", 132))}
    assert replayed(plan, facts, devices) is plan
    wanted = {"device": "cuda", "mutated": [2]}
    assert replayed(plan, wanted, {}) is plan
    found = replayed(plan, wanted, devices)
    assert isinstance(found, GraphReplay) and found.mutated == {2}


def test_every_candidate_of_a_kernel_is_measured_once():
    pipeline, _, host = planned(lambda x: x.softmax(-1).sum(0), (64, 1000))
    targets = {"cuda": NVIDIA_GPU.target("sm_90", 132)}
    units = pipeline._emit(host, targets)["cuda"]
    variants = [units, *alternatives(units)]
    for n, unit in enumerate(units):
        for k, kernel in enumerate(unit.kernels):
            firsts = [v[n].kernels[k].candidates[0] for v in variants]
            assert set(firsts) == set(kernel.candidates)
            assert {v[n].kernels[k].text for v in variants} == {kernel.text}
