"""Ops that have a kernel of their own and are faster in ATen: option `max_autotune`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from runner_cache import with_runner

from gyrator.autotune import single_ops
from gyrator.config import Config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session

LARGE = (128, 256)
WHY = "measured to be faster than a kernel"


@attrs.define
class Here:
    """Sessions that share a cache; `answer` is what measurements say."""

    folder: Path
    answer: str = "aten"
    measured: int = 0

    def quickest(self, runs: Mapping[str, Callable[[], Any]], *_: Any) -> str:
        """Stand for the measurement, which runs both."""
        self.measured += 1
        (kernel,), (aten,) = runs["kernel"](), runs["aten"]()
        torch.testing.assert_close(kernel, aten)
        return self.answer

    def calls(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Compile a function, compare its result, and return the ATen calls with their reasons."""
        torch._dynamo.reset()
        records: list[GraphRecord] = []
        dynamic = options.pop("dynamic", False)
        inputs = {"max_autotune": True, "strict": True, "progress": False, **options}
        config = Config(self.folder, 1 << 30, "")
        with Session(options=inputs, config=config, observer=records.append) as session:
            compiled = torch.compile(function, backend=session.backend, dynamic=dynamic)
            torch.testing.assert_close(compiled(*args), function(*args))
        return [(e.target, e.reason) for r in records for e in r.externs]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    made = Here(with_runner(tmp_path / "cache"))
    monkeypatch.setattr(single_ops, "quickest", made.quickest)
    return made


@pytest.mark.parametrize("answer", ["aten", "kernel"])
def test_the_faster_one_is_taken_and_remembered(here: Here, answer: str) -> None:
    here.answer = answer
    x = torch.randn(LARGE, dtype=torch.float64)
    expected = [("aten.flip.default", WHY)] if answer == "aten" else []
    assert here.calls(lambda x: x.flip(0), x) == expected
    assert here.measured == 1
    calls = here.calls(lambda x, y: (x.flip(0), torch.linalg.inv(y)), x, torch.eye(3))
    assert [c for c in calls if c[1] == WHY] == expected
    assert here.measured == 1


def test_ops_that_are_alike_are_measured_once(here: Here) -> None:
    x = torch.randn(256, 256, dtype=torch.float64)
    calls = here.calls(lambda x: torch.linalg.inv(x.flip(0)).mT.flip(0), x)
    assert [c for c in calls if c[1] == WHY] == [("aten.flip.default", WHY)] * 2
    assert here.measured == 1


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (lambda x: x.flip(0).exp(), LARGE),
        (lambda x: x.flip(0), (16, 16)),
        (lambda x: x.exp_(), LARGE),
        (lambda x: torch.ones(LARGE), LARGE),
    ],
    ids=["fused", "small", "writes", "fills"],
)
def test_other_ops_stay_kernels(
    here: Here, function: Callable[..., Any], sizes: tuple[int, ...]
) -> None:
    assert not here.calls(function, torch.zeros(sizes))
    assert not here.measured


@pytest.mark.parametrize(
    "options",
    [
        {"max_autotune": False},
        {"numerics": "batch_invariant"},
        {"extern_kernels": "none"},
        {"dynamic": True},
    ],
    ids=str,
)
def test_modes_without_a_choice(here: Here, options: dict[str, Any]) -> None:
    assert not here.calls(lambda x: x.flip(0), torch.randn(LARGE), **options)
    assert not here.measured


def test_an_op_that_fails_on_other_data_stays_a_kernel(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> str:
        raise IndexError

    monkeypatch.setattr(single_ops, "quickest", fails)
    assert not here.calls(lambda x: x.flip(0), torch.randn(LARGE))
