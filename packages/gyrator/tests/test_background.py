"""Kernels that are built while PyTorch runs the graph: option `build_in_background`."""

import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.config import Config
from gyrator.frontend.background import in_background
from gyrator.reports.records import GraphRecord
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")
HELD = """#!/bin/sh
case "$*" in {what}) while [ ! -e {gate} ]; do sleep 0.02; done;; esac
{last}
"""


@attrs.frozen
class Held:
    """A session whose compiler works on no kernel, or nothing else that it is told, until it is
    let go."""

    session: Session
    gate: Path
    records: list[GraphRecord]

    def compile(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Compile without waiting."""
        return torch.compile(function, backend=self.session.backend, **options)

    def let_go(self, run: Callable[[], Any], phases: int = 1) -> None:
        """Let the compiler work, and call until programs of so many phases are taken."""
        self.gate.touch()
        end = time.monotonic() + 120
        while len(self.records) < phases:
            assert time.monotonic() < end, "no program was taken"
            time.sleep(0.05)
            run()


def held(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: str,
    what: str = "*kernels.cpp*|*host*",
    **options: Any,
) -> Held:
    gate, compiler = folder / "gate", folder / "c++"
    compiler.write_text(HELD.format(what=what, gate=gate, last=last))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    torch._dynamo.reset()
    records: list[GraphRecord] = []
    inputs = {"strict": True, "progress": False, "build_in_background": True, **options}
    config = Config(folder / "cache", 1 << 30, "")
    return Held(Session(options=inputs, config=config, observer=records.append), gate, records)


@pytest.fixture(params=["python", "cpp", "fx"])
def here(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Held]:
    result = held(tmp_path, monkeypatch, 'exec g++ "$@"', wrapper=request.param)
    with result.session:
        yield result
        result.gate.touch()


def test_inference(here: Held) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x @ w, -1).relu(), (x * 2).t(), x.sum()

    def check() -> None:
        x, w = torch.randn(5, 7), torch.randn(7, 3)
        actual, expected = compiled(x, w), function(x, w)
        torch.testing.assert_close(actual, expected)
        assert [r.stride() for r in actual] == [r.stride() for r in expected]

    compiled = here.compile(function)
    with torch.no_grad():
        check()
        check()
        assert not here.records
        here.let_go(check)
        check()
    assert len(here.records) == 1 and not here.records[0].cached


def test_results_lie_as_a_program_lays_them() -> None:
    class Building:
        def is_building(self) -> bool:
            return True

        def finish(self) -> Any:
            raise AssertionError

    x = torch.randn(3, 4)
    gm = make_fx(lambda x: (x.exp(), x.sum()), tracing_mode="fake")(x)
    exp = next(n for n in gm.graph.nodes if n.op == "call_function")
    exp.meta["val"] = exp.meta["val"].t().contiguous().t()

    def begin(altered: torch.fx.GraphModule) -> Building:
        for node in altered.graph.find_nodes(op="output"):
            node.args = ((),)
        altered.recompile()
        return Building()

    exponential, total = in_background(gm, begin).call([x])
    assert exponential.stride() == (1, 3)
    torch.testing.assert_close((exponential, total), (x.exp(), x.sum()))


def test_sizes_that_vary(here: Held) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        return x.transpose(0, 1).contiguous().exp().transpose(0, 1), x.mean(0), x.shape[0] + 1

    def check() -> None:
        for rows in (4, 1, 9):
            x = torch.randn(rows, 6)
            actual, expected = compiled(x), function(x)
            torch.testing.assert_close(actual, expected)
            assert actual[0].stride() == expected[0].stride()

    compiled = here.compile(function, dynamic=True)
    check()
    assert not here.records
    here.let_go(check)
    check()


def test_training(here: Held) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.gelu(x @ w) * x).sum(1)

    def gradients(run: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(7)
        x = torch.randn(6, 6).t().requires_grad_()
        w = torch.randn(6, 6, requires_grad=True)
        result = run(x, w)
        return result, *torch.autograd.grad(result.square().sum(), (x, w))

    def check() -> None:
        torch.testing.assert_close(gradients(compiled), gradients(function))

    compiled = here.compile(function)
    check()
    assert not here.records
    here.let_go(check, phases=2)
    assert sorted(r.phase for r in here.records) == ["backward", "forward"]
    check()


def test_random_numbers_are_those_of_the_kernels(here: Held) -> None:
    def draws() -> torch.Tensor:
        torch.manual_seed(3)
        return compiled(torch.ones(1000))

    compiled = here.compile(lambda x: torch.nn.functional.dropout(x, 0.3) + torch.rand_like(x))
    before = draws()
    here.let_go(draws)
    assert torch.equal(draws(), before)


def test_writes_to_inputs(here: Held) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    def check() -> None:
        x, y = torch.randn(4, 4), torch.randn(4)
        actual = x.clone()
        torch.testing.assert_close((compiled(actual, y), actual), (function(x, y), x))

    compiled = here.compile(function)
    check()
    here.let_go(check)
    check()


def test_threads_call_while_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = held(tmp_path, monkeypatch, 'exec g++ "$@"')
    x = torch.randn(64)
    compiled = here.compile(lambda x: (x.exp() + 1).log())
    expected = compiled(x)
    wrong: list[torch.Tensor] = []

    def call() -> None:
        while not done.is_set():
            actual = compiled(x)
            if not torch.allclose(actual, expected):
                wrong.append(actual)

    done = threading.Event()
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        here.let_go(lambda: compiled(x))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong and len(here.records) == 1


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = 'case "$*" in *kernels.cpp*) exit 1;; esac; exec g++ "$@"'
    here = held(tmp_path, monkeypatch, fails, strict=False)
    x = torch.randn(8)
    compiled = here.compile(lambda x: x.exp() + 1)
    torch.testing.assert_close(compiled(x), x.exp() + 1)
    with pytest.warns(match="GY-BUILD-002"):
        here.let_go(lambda: compiled(x))
    assert here.records[0].fallback
    torch.testing.assert_close(compiled(x), x.exp() + 1)


@pytest.mark.parametrize(
    "function", [lambda x, w: x @ w, lambda x, w: x.exp() + w], ids=["without kernels", "kernels"]
)
def test_no_call_waits_for_the_runner(
    function: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = held(tmp_path, monkeypatch, 'exec g++ "$@"', what="*_gyrunner*")

    def check() -> None:
        x, w = torch.randn(6, 6), torch.randn(6, 6)
        torch.testing.assert_close(compiled(x, w), function(x, w))

    compiled = here.compile(function)
    at_last = threading.Timer(60, here.gate.touch)
    at_last.start()
    with torch.no_grad():
        check()
        time.sleep(1)  # kernels are built
        check()
        at_last.cancel()
        assert not here.records and not here.gate.exists()
        here.let_go(check)
        check()


def test_what_is_stored_is_loaded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    x = torch.randn(8)
    here = held(tmp_path, monkeypatch, 'exec g++ "$@"')
    compiled = here.compile(function)
    compiled(x)
    here.let_go(lambda: compiled(x))
    again = held(tmp_path, monkeypatch, 'exec g++ "$@"')
    torch.testing.assert_close(again.compile(function)(x), function(x))
    assert [r.cached for r in again.records] == [True]
