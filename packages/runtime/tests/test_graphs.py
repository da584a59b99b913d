"""Replayed programs give what the program gives, and never overwrite what somebody holds."""

import contextlib
import ctypes
import inspect

import pytest
import torch

from gyrator_runtime.device import CpuDevice
from gyrator_runtime.graphs import MAX_ATTEMPTS, MAX_RECORDINGS, GraphMemory, GraphReplay
from gyrator_runtime.warn import GyratorWarning


def unheld(value):
    """Return a tensor at the same address that does not keep the memory, as a graph's reads do."""
    if not isinstance(value, torch.Tensor) or not value.is_contiguous():
        return value
    memory = (ctypes.c_char * (value.numel() * value.itemsize)).from_address(value.data_ptr())
    return torch.frombuffer(memory, dtype=value.dtype).view(value.shape)


class Recorder(CpuDevice):
    """Stands in for a device with graphs: a replay runs again and writes to the same results."""

    def __init__(self, results):
        super().__init__()
        self.results = results
        self.captures = self.replays = 0

    def capture(self, run, *, warm=True, pool=None):
        assert not warm
        self.captures += 1
        run()
        retained = self.results.pop()
        arguments = inspect.getclosurevars(run).nonlocals["arguments"]

        def replay():
            self.replays += 1
            arguments[:] = [unheld(value) for value in arguments]
            run()
            for old, new in zip(retained, self.results.pop(), strict=True):
                if old is not new:
                    old.copy_(new)

        return replay


def build(function, mutated=(), memory=None):
    results = []

    def plan(args):
        values = list(args)
        args.clear()
        results.append(tuple(function(*values)))
        return results[-1]

    device = Recorder(results)

    def run(*args):
        inputs = list(args)
        result = replay(inputs)
        assert not inputs
        results.clear()
        return result

    replay = GraphReplay(plan, device, frozenset(mutated), 0, memory or GraphMemory())
    run.replay = replay
    return run, device


def test_results_of_two_calls_are_apart():
    run, device = build(lambda x, w: (x * w, x + w))
    x, w = torch.randn(5), torch.randn(5)
    pairs = []
    for _ in range(12):
        x.normal_()
        got = run(x, w)
        want = x * w, x + w
        assert all(map(torch.equal, got, want))
        pairs.append((got, want))
    for got, want in pairs:
        assert all(map(torch.equal, got, want))
    assert device.captures == MAX_RECORDINGS


def test_results_that_nobody_holds_are_written_again():
    run, device = build(lambda x: (x * 2,))
    x = torch.randn(5)
    for _ in range(6):
        x.normal_()
        assert torch.equal(run(x)[0], x * 2)
    assert (device.captures, device.replays) == (1, 5)


def test_a_view_of_a_result_keeps_it():
    run, _ = build(lambda x: (x * 2,))
    x = torch.randn(6)
    views = []
    for _ in range(4):
        x.normal_()
        views.append((run(x)[0].view(2, 3)[1], (x * 2).view(2, 3)[1]))
    assert all(torch.equal(a, b) for a, b in views)


def test_inputs_that_move_are_copied():
    run, device = build(lambda x, w: (x * w,))
    w = torch.randn(5)
    keep = [torch.randn(5) for _ in range(9)]
    for x in keep:
        assert torch.equal(run(x, w)[0], x * w)
    assert device.captures == 1 and device.replays == 8


def test_an_input_thought_fixed_may_move_later():
    run, device = build(lambda x: (x * 2,))
    x, y = torch.randn(5), torch.randn(5)
    for value in (x, x, x, y, x, y):
        assert torch.equal(run(value)[0], value * 2)
    assert device.captures == 2


def test_mutated_arguments_are_written_back():
    def step(x, total):
        total += x
        return (x * 2,)

    run, _ = build(step, mutated=(1,))
    x = torch.ones(3)
    totals = [torch.zeros(3) for _ in range(5)]
    for total in totals:
        run(x, total)
    assert all(torch.equal(t, x) for t in totals)


def test_an_argument_may_be_a_result():
    run, device = build(lambda x, y: (y, x + 1))
    x, y = torch.randn(3), torch.randn(3)
    for _ in range(4):
        same, more = run(x, y)
        assert same is y and torch.equal(more, x + 1)
    assert device.replays


@pytest.mark.parametrize("kind", ["view", "number", "uncapturable"])
def test_what_cannot_be_captured_runs_as_it_is(kind, monkeypatch):
    run, device = build(lambda x, *_: (x[1:], x + 1) if kind == "view" else (x + 1, x))
    x = torch.randn(4)
    more = (3,) if kind == "number" else ()

    def refuse(function, *, warm=True, pool=None):
        device.captures += 1
        raise RuntimeError("not while capturing")

    expected = contextlib.nullcontext()
    if kind == "uncapturable":
        monkeypatch.setattr(device, "capture", refuse)
        expected = pytest.warns(GyratorWarning, match=r"GY-RUNTIME-004.*not while capturing")
    with expected:
        for _ in range(4):
            x.normal_()
            result = run(x, *more)
            assert torch.equal(result[kind == "view"], x + 1)
    assert device.captures == (kind != "number") and device.replays == 0


def test_recording_is_bounded():
    run, device = build(lambda *xs: (sum(xs),))
    xs = [torch.randn(2) for _ in range(30)]
    for k in range(30):
        xs[k] = torch.randn(2)
        run(*xs)
        run(*xs)
    assert device.captures <= MAX_ATTEMPTS


def test_a_graph_waits_for_results_of_later_ones_in_its_pool():
    """Its working memory may be where they are."""
    memory = GraphMemory()
    (first, one), (second, two) = (build(lambda x: (x * 2,), memory=memory) for _ in range(2))
    x = torch.randn(5)
    for run in (first, first, second, second):
        run(x)
    assert (one.captures, two.captures) == (1, 1)
    results = second(x)
    for _ in range(3):
        assert torch.equal(first(x)[0], x * 2)  # the one recorded now is later than what is held
    assert (one.captures, two.captures) == (2, 1)
    again = [first(x) for _ in range(2)]
    assert torch.equal(results[0], again[0][0]) and one.captures == 3
    del results, again
    replays = one.replays
    first(x)
    assert (one.captures, one.replays) == (3, replays + 1)


def test_results_outlive_their_graph():
    memory = GraphMemory()
    (first, one), (second, _) = (build(lambda x: (x * 2,), memory=memory) for _ in range(2))
    x = torch.randn(5)
    for run in (first, first, second, second):
        run(x)
    results = second(x)
    second.replay._forget()
    for _ in range(2):
        first(x)
    assert one.captures == 2
    del results
    replays = one.replays
    first(x)
    assert (one.captures, one.replays) == (2, replays + 1)


def test_results_of_other_graphs_are_used_where_they_are():
    memory = GraphMemory()
    (first, one), (second, two) = (build(lambda x: (x * 2,), memory=memory) for _ in range(2))
    x = torch.randn(5)
    pairs = []
    for _ in range(8):
        x.normal_()
        (y,) = second(*first(x))
        pairs = [*pairs[-1:], (y, x * 4)]
        assert all(torch.equal(a, b) for a, b in pairs)
    assert second.replay._moving == set()
    assert one.captures <= MAX_RECORDINGS and two.captures <= MAX_RECORDINGS
    assert two.replays


def test_another_queue_has_recordings_of_its_own(monkeypatch):
    run, device = build(lambda x: (x * 2,))
    x = torch.randn(5)
    for _ in range(3):
        run(x)
    monkeypatch.setattr(device, "queue", lambda index=0: 7)
    for _ in range(3):
        assert torch.equal(run(x)[0], x * 2)
    assert device.captures == 2


def test_a_pool_without_graphs_is_left(monkeypatch):
    """A device may have given its memory up, though somebody holds results in it."""
    memory = GraphMemory()
    (first, one), (second, two) = (build(lambda x: (x * 2,), memory=memory) for _ in range(2))
    handles = []
    for device in (one, two):
        monkeypatch.setattr(device, "graph_pool", object)
        take = device.capture
        monkeypatch.setattr(
            device,
            "capture",
            lambda run, take=take, **more: handles.append(more) or take(run, warm=False),
        )
    x = torch.randn(3)
    for run in (first, second):
        run(x)
    results = first(x)
    first.replay._forget()
    assert torch.equal(second(x)[0], x * 2)
    assert torch.equal(first(x)[0], x * 2)
    a, b, c = (h["pool"] for h in handles)
    assert a is not b and b is c and torch.equal(results[0], x * 2)
