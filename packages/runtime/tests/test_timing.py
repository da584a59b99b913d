import pytest
import torch

from gyrator_runtime.device import CpuDevice
from gyrator_runtime.profile import compare, time_callable
from gyrator_runtime.tuning import choose


def test_time_and_compare():
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
