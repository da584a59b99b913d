import os
import subprocess
import sys
import time

import pytest
import torch

from gyrator_runtime import profile
from gyrator_runtime.device import CpuDevice, DeviceInterface
from gyrator_runtime.profile import compare, time_callable
from gyrator_runtime.tuning import choose


@pytest.fixture
def busy(monkeypatch):
    """Count the interruptions of this process that a test appends, on more than one thread."""
    interruptions = []
    monkeypatch.setattr(CpuDevice, "clock", DeviceInterface.clock)
    monkeypatch.setattr(profile, "_interruptions", lambda: len(interruptions))
    return interruptions


def test_time_and_compare(busy):
    cpu = CpuDevice()
    calls = []
    timing = time_callable(lambda: calls.append(0), cpu, samples=4, warmup=2)
    assert 0 <= timing.minimum <= timing.median
    assert len(calls) == 2 + 4
    order = []
    compare(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, cpu, samples=3, warmup=1
    )
    assert "".join(order) == "ab" + "ab" * 3


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_interrupted_samples_are_left_out(busy, wanted):
    calls = []

    def interrupted():
        """Take 10 ms except in the sixth and seventh sample."""
        calls.append(0)
        if len(calls) not in (7, 8):
            busy.append(0)
            time.sleep(1e-2)

    steady = []
    runs = {"steady": lambda: steady.append(0), "interrupted": interrupted}
    times = compare(runs, CpuDevice(), samples=wanted, warmup=0)
    assert times["interrupted"].median < 1e-2 and not times["interrupted"].disturbed
    assert len(steady) == len(calls) == (7 if wanted < 3 else 8)  # warm-up and samples


@pytest.mark.parametrize("interruptions", [0, 3])
def test_a_comparison_ends_when_two_undisturbed_samples_of_each_decide(busy, interruptions):
    calls = []

    def run():
        calls.append(0)
        if 1 < len(calls) <= 1 + interruptions:  # after the warm-up
            busy.append(0)

    seen = []

    def decided(seconds):
        seen.append(set(seconds))
        return len(seen) == 2

    runs = {"run": run, "other": lambda: None}
    times = compare(runs, CpuDevice(), samples=20, warmup=1, decided=decided)
    assert seen == [{"run", "other"}] * 2
    assert len(calls) == 1 + interruptions + 3
    assert not times["run"].disturbed


def test_what_is_interrupted_throughout_is_called_disturbed(busy, monkeypatch):
    monkeypatch.setattr(profile, "_MORE_SECONDS", 1e-2)
    runs = {"steady": lambda: None, "interrupted": lambda: busy.append(0)}
    times = compare(runs, CpuDevice(), samples=2)
    assert [t.disturbed for t in times.values()] == [False, True]
    assert 0 < times["interrupted"].minimum <= times["interrupted"].median


def test_an_interruption_of_a_long_sample_is_nothing(busy, monkeypatch):
    monkeypatch.setattr(profile, "_TIME_SLICE", 1e-3)

    def run():
        busy.append(0)
        time.sleep(3e-2)

    assert not time_callable(run, CpuDevice(), samples=2, warmup=0).disturbed


@pytest.mark.skipif(sys.platform != "linux", reason="binds processes to one processor")
def test_interruptions_are_counted():
    """A process that others compete with is interrupted; one processor for two shows it."""
    script = (
        "import os, time\n"
        "from gyrator_runtime.profile import _interruptions\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "child = os.fork()\n"
        "end = time.monotonic() + 0.5\n"
        "while time.monotonic() < end: pass\n"
        "if child: os.waitpid(child, 0); print(_interruptions())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 5


@pytest.fixture
def threads():
    """Set the number of torch's threads."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.skipif(os.name != "posix", reason="the clock of a thread is too coarse")
@pytest.mark.parametrize("number", [1, 2])
def test_waiting_counts_unless_one_thread_does_all_work(threads, monkeypatch, number):
    """What a thread waits for is not its work: another process that has the processor."""
    threads(number)
    waits = iter(range(1, 100))
    monkeypatch.setattr(profile, "_interruptions", lambda: next(waits))
    monkeypatch.setattr(profile, "_MORE_SECONDS", 0)
    timing = time_callable(lambda: time.sleep(1e-2), CpuDevice(), samples=3, warmup=0)
    assert timing.disturbed == (timing.minimum >= 1e-2) == (number == 2)


def test_short_calls_repeat():
    calls = []
    time_callable(lambda: calls.append(0), CpuDevice(), samples=2, sample_seconds=0.01)
    assert len(calls) > 100


def test_choose_takes_the_quickest_that_runs():
    def fail():
        raise RuntimeError("too much shared memory")

    work = torch.randn(300, 300)
    chosen = choose(
        {"slow": lambda: [work @ work for _ in range(20)], "bad": fail, "quick": lambda: None},
        CpuDevice(),
        samples=3,
    )
    assert chosen == "quick"
    two = {"slow": lambda: [work @ work for _ in range(20)], "quick": lambda: None}
    assert choose(two, CpuDevice(), samples=3, gain=1e9) == "slow"
    assert choose({"bad": fail, **two}, CpuDevice(), samples=3, gain=1e9) == "quick"
    with pytest.raises(ValueError, match="no candidate runs: RuntimeError: too much shared memory"):
        choose({"bad": fail}, CpuDevice())


@pytest.mark.parametrize("able", [True, False])
def test_candidates_are_measured_as_graphs_where_those_can_be_captured(able):
    class Graphs(CpuDevice):
        captured = 0

        def supports_graphs(self):
            return True

        def capture(self, run, *, warm=True, pool=None):
            if not able:
                raise RuntimeError("it waits for the host")
            Graphs.captured += 1
            run()
            return run

    calls = []
    work = torch.randn(300, 300)
    two = {"slow": lambda: [work @ work for _ in range(20)], "quick": lambda: calls.append(0)}
    assert choose(two, Graphs(), samples=3, sample_seconds=1e-3) == "quick"
    assert Graphs.captured == (2 if able else 0)
    assert len(calls) > 3
