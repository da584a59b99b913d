"""Graphs that run in eager mode where that is faster: option `eager_if_faster`."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from runner_cache import with_runner
from torch.autograd import forward_ad as fwAD
from torch.utils._python_dispatch import TorchDispatchMode

import gyrator
from gyrator.autotune.kernels import Budget
from gyrator.config import Config
from gyrator.frontend import eager_if_faster
from gyrator.frontend.eager_if_faster import Times, measured, peak_bytes
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_runtime.device import CpuDevice
from gyrator_runtime.warn import GyratorWarning

EAGER, COMPILED = Times(2.0, 1.0), Times(1.0, 2.0)


@attrs.define
class Measured:
    """Stands for the measurement: runs both, as that does, and gives the times that it is told."""

    times: Times | None = EAGER
    calls: int = 0

    def __call__(self, compiled: Any, function: Any, args: Sequence[Any], *_: Any) -> Times | None:
        self.calls += 1
        eager_if_faster._step(compiled, args)()
        eager_if_faster._step(function, args)()
        return self.times


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Measured:
    stand_in = Measured()
    monkeypatch.setattr(eager_if_faster, "measured", stand_in)
    return stand_in


@attrs.frozen
class Here:
    """Sessions that share a cache."""

    folder: Path
    records: list[GraphRecord] = attrs.field(factory=list)

    def compile(
        self, function: Callable[..., Any], dynamic: bool | None = None, **options: Any
    ) -> Callable[..., Any]:
        """Compile in a new session."""
        torch._dynamo.reset()
        self.records.clear()
        session = Session(
            options={"eager_if_faster": True, "progress": False, **options},
            config=Config(self.folder, 1 << 30, ""),
            observer=self.records.append,
        )
        return torch.compile(function, backend=session.backend, dynamic=dynamic)

    @property
    def replaced(self) -> list[str]:
        """What is said about graphs that run in eager mode."""
        return [r.fallback for r in self.records if r.fallback]


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(with_runner(tmp_path / "cache"))


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sigmoid()


@attrs.define
class Clock:
    """A device whose work takes as long as it is told."""

    now: float = 0.0

    def synchronize(self) -> None: ...

    def clock(self) -> Callable[[], float]:
        return lambda: self.now

    def taking(self, seconds: float) -> Callable[..., tuple[()]]:
        def run(*_: Any) -> tuple[()]:
            self.now += seconds
            return ()

        return run


@pytest.mark.parametrize(("compiled", "eager", "replaces"), [(20, 10, True), (10.6, 10, True),
    (10.4, 10, False), (10, 20, False)])  # fmt: skip
def test_eager_mode_has_to_gain(compiled: float, eager: float, replaces: bool) -> None:
    clock = Clock()
    runs = (clock.taking(compiled), clock.taking(eager))
    times = measured(*runs, [], clock, Budget(0))
    assert times == Times(pytest.approx(compiled), pytest.approx(eager))
    assert times.replaces == replaces


@pytest.mark.parametrize(("times", "replaces"), [
    (Times(1.00, 1.00, 30 << 20, 20 << 20), True),
    (Times(1.04, 1.00, 30 << 20, 20 << 20), True),
    (Times(1.00, 1.04, 30 << 20, 20 << 20), True),
    (Times(1.00, 1.06, 30 << 20, 20 << 20), False),
    (Times(1.00, 1.00, 21 << 20, 20 << 20), False),
    (Times(1.00, 1.00, 3000, 2000), False),
    (Times(1.00, 1.00, 20 << 20, 30 << 20), False),
])  # fmt: skip
def test_eager_mode_may_save_memory(times: Times, replaces: bool) -> None:
    assert times.replaces == replaces


def test_a_peak_is_what_a_call_adds() -> None:
    held = [torch.empty(1 << 20)]

    def run() -> None:
        first, second = torch.empty(1_000_000), torch.empty(500_000)
        del first
        held[0] = torch.empty(250_000)
        del second

    assert peak_bytes(run) == 6_000_000
    x = torch.randn(1000, 1000, requires_grad=True)
    step = eager_if_faster._step(lambda x: (x.exp().sin(),), [x])
    assert peak_bytes(step) >= 4 * x.nbytes  # two results, a tangent, and gradients


@pytest.mark.parametrize("needed", [2_000_000, 9_000_000])
def test_the_leaner_of_two_equally_fast_is_kept_and_remembered(
    here: Here, measure: Measured, monkeypatch: pytest.MonkeyPatch, needed: int
) -> None:
    x, measure.times = torch.randn(5, 7), Times(1.0, 1.0)
    peaks = iter((needed, 4_000_000))
    monkeypatch.setattr(eager_if_faster, "peak_bytes", lambda _: next(peaks))
    for _ in range(2):
        compiled = here.compile(function)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), function(x))
        said = "eager mode needs 4.0 MB at its peak instead of 9.0 MB, and 1.00 of the time"
        assert [s for s in here.replaced if said in s] == here.replaced
        assert len(here.replaced) == (needed > 4_000_000)
    assert measure.calls == 1 and next(peaks, None) is None


@pytest.mark.parametrize("times", [EAGER, COMPILED])
def test_peaks_are_not_measured_where_times_decide(
    here: Here, measure: Measured, monkeypatch: pytest.MonkeyPatch, times: Times
) -> None:
    measure.times = times
    monkeypatch.setattr(eager_if_faster, "peak_bytes", None)
    here.compile(function)(torch.ones(3))
    assert bool(here.replaced) == times.replaces


def test_a_clear_answer_needs_few_runs() -> None:
    def runs(eager: float) -> float:
        clock = Clock()
        measured(clock.taking(10), clock.taking(eager), [], clock, Budget(0))
        return clock.now / (10 + eager)

    assert runs(1) < 7 < 12 < runs(9.5)


def test_slow_graphs_exceed_the_budget() -> None:
    clock = Clock()
    assert measured(clock.taking(10), clock.taking(1), [], clock, Budget(60)) is None
    assert measured(clock.taking(10), clock.taking(1), [], clock, Budget(100)) is not None


def test_a_faster_eager_mode_is_kept_and_remembered(here: Here, measure: Measured) -> None:
    x = torch.randn(5, 7)
    compiled = here.compile(function)
    for _ in range(3):
        assert torch.equal(compiled(x), function(x))
    (said,) = here.replaced
    assert "eager mode takes 0.50 of the time" in said and "(x * 2).sigmoid()" in said
    assert measure.calls == 1

    again = here.compile(function)
    assert torch.equal(again(x), function(x))
    assert measure.calls == 1 and here.replaced == [said]

    measure.times = COMPILED
    unstored = here.compile(function, cache=False)
    unstored(x)
    unstored(x)
    assert measure.calls == 2 and not here.replaced


def test_a_faster_program_is_kept_and_remembered(here: Here, measure: Measured) -> None:
    measure.times = COMPILED
    for _ in range(2):
        compiled = here.compile(function)
        for _ in range(2):
            torch.testing.assert_close(compiled(torch.ones(3)), function(torch.ones(3)))
        assert not here.replaced
    assert measure.calls == 1


def test_no_answer_is_not_remembered(here: Here, measure: Measured) -> None:
    measure.times = None
    for count in (1, 2):
        compiled = here.compile(function)
        compiled(torch.ones(3))
        compiled(torch.ones(3))
        assert measure.calls == count and not here.replaced


def test_other_sizes_are_not_measured_again(here: Here, measure: Measured) -> None:
    compiled = here.compile(lambda x: (function(x), x.t()), dynamic=True)
    for size in (3, 4, 5):
        x = torch.randn(size, size + 1)
        results = compiled(x)
        for actual, expected in zip(results, (function(x), x.t()), strict=True):
            torch.testing.assert_close(actual, expected)
            assert actual.stride() == expected.stride()
        assert results[1].data_ptr() == x.data_ptr()


def test_sizes_share_a_decision(here: Here, measure: Measured) -> None:
    compiled = here.compile(function, dynamic=True)
    for size in (3, 4, 5):
        x = torch.randn(size, size + 1)
        assert torch.equal(compiled(x), function(x))
    assert measure.calls == 1 and len(here.replaced) == 1


@pytest.mark.parametrize("times", [EAGER, COMPILED])
def test_training(here: Here, measure: Measured, times: Times) -> None:
    measure.times = times
    seen: list[torch.Tensor] = []
    for _ in range(2):
        compiled = here.compile(lambda x, w: (torch.tanh(x @ w), w.sum().detach()))
        for _ in range(2):
            w = torch.randn(4, 3, requires_grad=True)
            w.register_hook(seen.append)
            x = torch.randn(5, 4)
            y, total = compiled(x, w)
            y.sum().backward()
            expected = w.detach().clone().requires_grad_()
            torch.tanh(x @ expected).sum().backward()
            torch.testing.assert_close(w.grad, expected.grad)
            assert total.item() == pytest.approx(w.sum().item())
    assert len(seen) == 4  # measuring accumulates nothing, and calls no hooks
    assert measure.calls == 1
    assert bool(here.replaced) == times.replaces


def test_the_mode_is_restored(here: Here, measure: Measured) -> None:
    with torch.no_grad():
        here.compile(function)(torch.randn(3, requires_grad=True))
        assert not torch.is_grad_enabled()
    assert measure.calls == 1


@torch.library.custom_op("gyrator_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    """Stand for an op that PyTorch knows nothing about."""
    return x + 1


@counted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: x.add_(1),
        lambda x: x + torch.rand_like(x),
        lambda x: torch.nn.functional.dropout(x, 0.5, True),
        lambda x: x.t_(),
        lambda x: counted(x),
    ],
    ids=["writes", "draws", "drops", "turns", "custom"],
)
def test_what_cannot_be_repeated_stays_compiled(
    here: Here, measure: Measured, refused: Callable[..., Any]
) -> None:
    for _ in range(2):
        compiled = here.compile(refused)
        x = torch.zeros(2, 3)
        compiled(x)
        compiled(x)
        assert not here.replaced
    assert not measure.calls


@pytest.mark.parametrize("dropped", [0.0, 0.5])
def test_attention_draws_numbers_only_for_dropout(
    here: Here, measure: Measured, dropped: float
) -> None:
    def attention(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=dropped)

    here.compile(attention)(torch.randn(1, 2, 8, 16))
    assert measure.calls == (dropped == 0)


def test_an_error_while_measuring(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(eager_if_faster, "measured", fails)
    compiled = here.compile(function)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3)), function(torch.ones(3)))
    assert not here.replaced


def test_bad_input_gives_the_error_of_the_call(here: Here) -> None:
    compiled = here.compile(lambda x, i: x[i])
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.ones(3), torch.tensor([7]))
    assert torch.equal(compiled(torch.arange(3.0), torch.tensor([2])), torch.tensor([2.0]))


class Subclass(torch.Tensor):
    """A tensor whose calls its class could see."""


class Seeing(TorchDispatchMode):
    """A mode that would see the calls of a measurement."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_nothing_that_watches_calls_sees_a_measurement(here: Here, measure: Measured) -> None:
    compiled = here.compile(function)
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        compiled(x)
    assert not measure.calls
    compiled(x)
    assert measure.calls == 1


def test_when_calls_may_be_repeated() -> None:
    device, x = CpuDevice(), torch.ones(3)
    seen: list[bool] = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        seen.append(eager_if_faster._possible([x, 5], device))
        return x

    ask(x)
    assert seen == [True]
    with Seeing():
        ask(x)
    torch.func.vmap(ask)(x)
    torch.func.jvp(ask, (x,), (x,))
    with fwAD.dual_level():
        ask(x)
    ask(x.as_subclass(Subclass))
    assert seen[1:] == [False] * 5


def test_other_threads_do_not_wait(
    here: Here, measure: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go = threading.Event(), threading.Event()

    def slowly(*args: Any) -> Times | None:
        inside.set()
        assert go.wait(60)
        return Measured.__call__(measure, *args)

    x = torch.randn(4)
    compiled = here.compile(function)
    monkeypatch.setattr(eager_if_faster, "measured", slowly)
    first = threading.Thread(target=lambda: compiled(x))
    first.start()
    assert inside.wait(60)
    torch.testing.assert_close(compiled(x), function(x))
    assert not here.replaced
    go.set()
    first.join()
    assert len(here.replaced) == 1 and measure.calls == 1


@pytest.mark.parametrize(
    "other",
    [{"strict": True}, {"numerics": "batch_invariant"}, {"nan_asserts": True},
     {"device_graphs": True}],
    ids=str,
)  # fmt: skip
def test_other_options_that_keep_graphs_compiled(
    here: Here, measure: Measured, other: dict[str, Any]
) -> None:
    name, value = next(iter(other.items()))
    with pytest.warns(GyratorWarning, match=f"GY-OPTION-006: .*eager_if_faster.* {name}={value!r}"):
        here.compile(function, **other)(torch.ones(3))
    assert not measure.calls


def test_explain(measure: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path))
    explanation = gyrator.explain(function, torch.ones(3), options={"eager_if_faster": True})
    text = str(explanation)
    assert "a graph runs eagerly:" in text and "eager mode takes 0.50 of the time" in text
    report = explanation.save(tmp_path / "report.html").read_text()
    assert "eager mode takes 0.50 of the time" in report
