"""Which programs a captured graph stands for, and candidates for measuring, without a device."""

import pytest
import torch
from attrs import evolve
from graph_device import GraphHost, graph_session
from test_gpu_targets import session_for
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

from gyrator.autotune.kernels import Memory, Winner, alternative, first, most_candidates
from gyrator.engine.device_graphs import captured, replayed
from gyrator.engine.emission import tiled_of
from gyrator.engine.pipeline import Stages
from gyrator.options import Options
from gyrator.reports.explain import Explanation
from gyrator.store.manifest import Captured
from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.kernel.verify import verify as verify_kernel
from gyrator_lowering.default import default_table
from gyrator_lowering.fx_passes import fx_pipeline
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_runtime.cache import Cache
from gyrator_runtime.graphs import MAX_ATTEMPTS, GraphMemory, GraphReplay
from gyrator_runtime.host import with_current_device
from gyrator_scheduler.stage import plan_host, schedule


def planned(function, *inputs, host=()):
    """Return the stages, schedule and host program of a function of GPU tensors, given as such or
    by their sizes; those called by a name in `host` are the host's."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = (torch.empty(g) if isinstance(g, tuple) else g for g in inputs)
        graph = make_fx(function)(*(t.to("meta") for t in tensors))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    for node in graph.graph.nodes:
        device = torch.device("cpu") if node.name in host else torch.device("cuda", 0)
        node.meta["val"] = tree_map_only(
            torch.Tensor,
            lambda t, d=device: FakeTensor(fake, t.to("meta"), d),
            node.meta.get("val"),
        )
    session = session_for(NVIDIA_GPU, "sm_90")
    stages = Stages(session.engine(Options()).context)
    targets = {d: t for d, (_, t) in session.targets.items()}
    fx_pipeline().run(graph)
    program = lower(graph, LoweringOptions(), targets, default_table())
    options = evolve(stages.scheduler_options(), device_graphs=True)
    result = verify_kernel(schedule(program, options, targets))
    return stages, result, verify_host(plan_host(result, options, targets))


LANGUAGE, TARGET = TritonBackend(), NVIDIA_GPU.target("sm_90", 132)


def tiled_for_gpu(function, *inputs):
    """Return the tiled kernels of a function, and what writes a choice of them."""
    _, _, host = planned(function, *inputs)

    def text(program):
        return [k for u in LANGUAGE.emit_tiled(program, TARGET) for k in u.kernels]

    return tiled_of(host, LANGUAGE, TARGET), text


def test_a_program_on_one_device_can_be_captured():
    _, _, host = planned(lambda x, w: (x * w).sum(0), (64, 100), (100,))
    assert captured(host) == Captured("cuda", 0, ())
    assert not host.subprograms and str(host.home).startswith("cuda")


def test_results_that_are_no_tensors_do_not_divide_a_program():
    """As the gradients of what needs none."""
    device, records = GraphHost(), []
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 6)
    step = lambda x, w: torch.relu(x @ w).sin().sum()  # noqa: E731
    with graph_session(device) as session:
        session.observer = records.append
        call = torch.compile(step, backend=session.backend, mode="reduce-overhead")
        for _ in range(4):
            (got,), (want,) = (torch.autograd.grad(f(x, w), x) for f in (call, step))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert device.captures >= 2 and device.replays >= device.captures
    assert len(records) == 2 and not any("call_partition(" in r.host_text for r in records)


def test_what_is_written_to_is_known():
    _, _, host = planned(lambda x, w: (w.copy_(x.sum(0)), x + 1), (64, 100), (100,))
    assert captured(host) == Captured("cuda", 0, (1,))


def test_an_index_of_the_host_is_copied_outside_of_one_graph():
    """Features of a recommender: bags of rows, and the products of pairs that the host names."""

    def features(ids, table, weight, pairs):
        bags, *_ = torch.ops.aten._embedding_bag(table, ids, torch.arange(0, 24, 3), False, 0)
        actual = torch.stack((bags, bags.sin()), 1)
        products = (actual @ actual.transpose(1, 2)).flatten(1)
        return torch.sigmoid(products[:, pairs] @ weight), pairs

    _, result, host = planned(
        features, torch.zeros(24).long(), (20, 6), (3, 2), torch.zeros(3).long(), host=("pairs_1",)
    )
    outside, inside = result.partitions
    assert (outside.end, outside.reason) == (1, "it copies from one device to another")
    assert str(inside.device) == "cuda:0" and inside.end == len(result.nodes) > 4
    parts = [c for c in map(captured, host.subprograms) if c is not None]
    assert captured(host) is None and parts == [Captured("cuda", 0, ())]


def test_a_number_of_the_host_is_copied_once_outside_of_one_graph():
    def scaled(x, number):
        y = torch.relu(x * number).sum(0)
        return (x @ x.t()).sin() * number, torch.full_like(x, 2.0).clamp(max=number), y - number

    _, result, host = planned(scaled, (64, 100), (), host=("number_1",))
    outside, inside = result.partitions
    assert (outside.end, outside.reason) == (1, "it copies from one device to another")
    assert str(inside.device) == "cuda:0" and inside.end == len(result.nodes) > 2
    assert [captured(part) for part in host.subprograms] == [Captured("cuda", 0, ())]


@pytest.mark.parametrize("facts", [None, Captured("cpu", 0, ())])
def test_other_programs_run_as_they_are(facts):
    def plan(args):
        return args

    device = NVIDIA_GPU.definition().device
    devices = {"cuda": lambda: device(NVIDIA_GPU.target("sm_90", 132))}
    assert replayed(plan, facts, devices, GraphMemory()) is plan
    expected = Captured("cuda", 0, (2,))
    assert replayed(plan, expected, {}, GraphMemory()) is plan
    actual = replayed(plan, expected, devices, GraphMemory())
    assert isinstance(actual, GraphReplay) and actual.mutated == {2}


def test_every_candidate_of_a_kernel_is_measured_once():
    tiled, text = tiled_for_gpu(lambda x: x.softmax(-1).sum(0), (64, 1000))
    every = {k.kernel.name: k.candidates for k in tiled.kernels}
    count = most_candidates(tiled, ())
    assert count == max(map(len, every.values())) > 1
    actual = {name: [] for name in every}
    for choose in (first({}, "sm_90"), *(alternative((), n) for n in range(1, count))):
        for source in text(choose(tiled)):
            actual[source.kernel] += source.candidates
    plain = {s.kernel: s.candidates for s in text(tiled)}
    assert {k: tuple(v) for k, v in actual.items()} == plain
    assert {k: len(v) for k, v in every.items()} == {k: len(v) for k, v in actual.items()}


def test_a_kernel_that_was_measured_is_built_as_its_winner(tmp_path):
    """Also where another program has it under another name, and not where sizes differ."""
    cache = Cache(tmp_path)

    def program(function, size):
        _, _, host = planned(function, size)
        return Memory(cache, b"", host), tiled_of(host, LANGUAGE, TARGET)

    memory, tiled = program(lambda x: x.softmax(-1), (640, 1000))
    (kernel,) = tiled.kernels
    assert memory.winners(tiled) == {}
    memory.add(tiled, {})
    assert memory.winners(tiled) == {}
    winner = Winner("sm_90", kernel.candidates[2])
    memory.add(tiled, {kernel.kernel.name: winner})

    for size, known in ((640, True), (641, False)):
        memory, tiled = program(lambda x: (x.sum(0), x.softmax(-1)), (size, 1000))
        again = next(k for k in tiled.kernels if "softmax" in k.kernel.name)
        assert again.kernel.name != kernel.kernel.name
        expected = {again.kernel.name: winner} if known else {}
        assert memory.winners(tiled) == expected
        best = first(memory.winners(tiled), "sm_90")(tiled).kernels[tiled.kernels.index(again)]
        assert best.candidates == ((winner.configuration,) if known else again.candidates[:1])


@pytest.fixture
def searching():
    """Let Dynamo trace ops whose results have a size that values decide."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


def test_what_waits_for_values_stays_outside_of_few_partitions(searching):
    """Results of several calls stay apart, in training too, and recording is bounded."""
    device = GraphHost()
    w = torch.randn(8, 8, requires_grad=True)

    def step(x):
        y = torch.relu(x @ w).sin()
        indices = torch.nonzero(y.sum(1) > 1)
        z = (y @ w).cos()
        return (z @ w).sum(), indices.sum(), z

    with graph_session(device) as session:
        call = torch.compile(step, backend=session.backend, mode="reduce-overhead")
        retained = []
        for _ in range(8):
            x = torch.randn(4, 8)
            retained = [*retained[-1:], (call(x), step(x))]
            for got, want in retained:
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            (got, want) = retained[-1]
            pair = [torch.autograd.grad(r[0], w)[0] for r in (got, want)]
            torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)
        assert session.recorded_graphs == device.captures <= 3 * MAX_ATTEMPTS
    assert device.replays > device.captures / 2


def test_partitions_of_a_program(searching):
    """Two searches and what needs them stay outside; all the rest is one or two graphs."""

    def function(x, y):
        for _ in range(2):
            x = x.sin() @ y + torch.unique(x > 9).shape[0]
            y = (y + 1) @ x
        return x, y

    records = []
    with graph_session(GraphHost()) as session:
        session.observer = records.append
        call = torch.compile(function, backend=session.backend, mode="reduce-overhead")
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        torch.testing.assert_close(call(x, y), function(x, y), rtol=1e-4, atol=1e-4)
    (record,) = records
    captured = [p for p in record.partitions if p.device]
    assert 1 <= len(captured) == record.host_text.count(".call_partition(") <= 3
    assert {p.device for p in captured} == {"cpu"} and all(len(p.nodes) > 1 for p in captured)
    reasons = {n: p.reason for p in record.partitions for n in p.nodes if not p.device}
    assert reasons["aten._unique2.default"] == "values decide the sizes of its results"
    message = str(Explanation((record,), None))
    assert "captured on cpu" in message and "values decide the sizes" in message


def test_what_is_looked_at_for_nan_is_not_captured():
    """No recording is tried, which would fail."""
    device, records = GraphHost(), []
    with graph_session(device) as session:
        session.observer = records.append
        function = lambda x: torch.relu(x @ x).sin().sum()  # noqa: E731
        options = {"device_graphs": True, "nan_asserts": True}
        call = torch.compile(function, backend=session.backend, options=options)
        for x in torch.randn(4, 5, 5):
            torch.testing.assert_close(call(x), function(x))
        with pytest.raises(AssertionError, match="NaN"):
            call(torch.full((5, 5), torch.nan))
    (record,) = records
    assert not device.captures and not any(p.device for p in record.partitions)


@pytest.mark.parametrize("current", [0, 1])
def test_a_program_runs_on_its_own_device(current, monkeypatch):
    """The caller's device is the current one again afterwards, also where the program fails."""
    devices = [current]

    class Guard:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            devices.append(self.index)

        def __exit__(self, *_):
            devices.pop()

    monkeypatch.setattr(torch.accelerator, "device_index", Guard)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: devices[-1])
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    seen = []

    def program(args):
        seen.append(devices[-1])
        return args[0]

    assert with_current_device(program, 1)([7]) == 7 and seen == [1] and devices == [current]
    with pytest.raises(IndexError):
        with_current_device(program, 1)([])
    assert devices == [current]
    assert with_current_device(program, None) is program
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert with_current_device(program, 0) is program
