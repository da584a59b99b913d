"""Candidates of C++ kernels are built, measured, remembered, and taken again."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from runner_cache import with_runner

from gyrator import Session
from gyrator.autotune import kernels as autotune
from gyrator.autotune import matmuls, single_ops
from gyrator.config import Config
from gyrator.targets import discover
from gyrator.targets.cpu import CppLoader, cpu_target, narrower
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_runtime.device import cpu_isa


class Measured:
    """Runs what it is given, and says which of it was the quickest."""

    def __init__(self) -> None:
        self.place = 0
        self.asked: list[int] = []

    def __call__(self, runs: Mapping[int, Callable[[], object]], *_: object) -> int:
        self.asked.append(len(runs))
        for run in runs.values():
            run()
        return list(runs)[self.place]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Measure nothing, and say what is the quickest."""
    actual = Measured()
    # Products are measured by what their module has imported, which must not be a replacement.
    assert matmuls.quickest is single_ops.quickest is autotune.quickest
    monkeypatch.setattr(single_ops, "faster_in_aten", lambda *_: {})  # stays a kernel
    monkeypatch.setattr(autotune, "quickest", actual)
    return actual


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[list[KernelSource]]:
    """Note the kernels of everything that is built, a list for each variant."""
    actual: list[list[KernelSource]] = []
    submit = CppLoader.submit

    def noted(self: CppLoader, units: Sequence[TranslationUnit]) -> Any:
        actual.append([k for u in units for k in u.kernels])
        return submit(self, units)

    monkeypatch.setattr(CppLoader, "submit", noted)
    return actual


def run(tmp_path: Path, function: Any, x: torch.Tensor, archs: int = 1, **options: Any) -> None:
    """Compile a function for so many levels of vectors, and compare it with eager mode."""
    torch._dynamo.reset()
    config = Config(with_runner(tmp_path / "cache"), 1 << 30, "")
    (definition, target) = discover(config)["cpu"]
    some = evolve(definition, variants=lambda t: definition.variants(t)[:archs])
    inputs = {"strict": True, "progress": False, "max_autotune": True} | options
    with Session(options=inputs, config=config, targets={"cpu": (some, target)}) as session:
        actual = torch.compile(function, backend=session.backend)(x)
    torch.testing.assert_close(actual, function(x), rtol=1e-4, atol=1e-4)


def anonymous(kernel: KernelSource) -> str:
    """Return a kernel's text without its name and where it came from."""
    lines = kernel.text.replace(kernel.symbol, "kernel").splitlines()
    return "\n".join(line for line in lines if not line.startswith("//"))


def test_the_quickest_candidate_is_taken_again(
    tmp_path: Path, measured: Measured, built: list[list[KernelSource]]
) -> None:
    """In another graph, under another name, and without measuring."""
    x = torch.randn(40, 8192)  # kernels of less run together
    measured.place = 3
    run(tmp_path, lambda x: x.sum(0), x)
    texts = [anonymous(k) for variant in built for k in variant]
    assert measured.asked == [len(set(texts))] and len(texts) == len(built) > 4
    assert len(set(texts)) == len(texts)

    built.clear()
    run(tmp_path, lambda x: (x.softmax(-1), x.sum(0)), x)
    assert len(measured.asked) == 2
    (again,) = (k for k in built[0] if "_sum" in k.symbol)
    assert anonymous(again) == texts[3]
    assert not any("_sum" in k.symbol for variant in built[1:] for k in variant)


def test_without_measuring_the_first_candidate_is_taken(
    tmp_path: Path, measured: Measured, built: list[list[KernelSource]]
) -> None:
    x = torch.randn(40, 300)
    run(tmp_path, lambda x: x.sum(0), x, max_autotune=False)
    ((plain,),) = built
    built.clear()
    run(tmp_path, lambda x: x.sum(0), x)
    assert anonymous(built[0][0]) == anonymous(plain) and not plain.candidates
    assert measured.asked == [len(built)]


def test_other_levels_of_vectors_are_remembered(
    tmp_path: Path, measured: Measured, built: list[list[KernelSource]]
) -> None:
    """A graph whose kernels all won elsewhere builds them there."""
    if len(narrower(cpu_target(cpu_isa(), 1))) < 2:
        pytest.skip("this processor has one level of vectors")
    x = torch.randn(41, 290)
    measured.place = 1
    run(tmp_path, lambda x: x.sum(0), x, archs=2)
    (narrow,) = built[1]
    built.clear()
    run(tmp_path, lambda x: x.sum(0), x, archs=2, size_asserts=True)
    assert len(measured.asked) == 1 and len(built) == 2
    assert [anonymous(k) for k in built[1]] == [anonymous(narrow)]


def test_layers_that_are_alike_are_measured_once(tmp_path: Path, measured: Measured) -> None:
    x = torch.randn(50, 50)
    run(tmp_path, lambda x: ((x.softmax(-1) @ x).softmax(-1) @ x).softmax(-1), x)
    assert len(measured.asked) == 1
