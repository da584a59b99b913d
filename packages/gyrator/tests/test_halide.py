"""The target `halide`: models on Halide's kernels, from every host language."""

import importlib.metadata
from functools import partial

import pytest
import torch

from gyrator.targets.halide import LACKING
from gyrator_codegen_halide.ops import LACKING as WRITTEN_FOR
from gyrator_runtime.warn import GyratorWarning


@pytest.fixture
def compiled(on_target):
    return partial(on_target, target="halide")


def model(x, w, at):
    normal = torch.nn.functional.layer_norm(x, x.shape[-1:])
    half = (normal * w).to(torch.bfloat16).float()
    picked = half[at].cumsum(-1) + torch.lgamma(x.abs() + 1)[at]
    return torch.softmax(picked, -1), x.argmax(-1), (x > 0).sum(0)


@pytest.mark.parametrize("wrapper", ["python", "cpp", pytest.param("fx", marks=pytest.mark.long)])
def test_a_model(compiled, wrapper):
    run, records = compiled(model, dynamic=True, strict=True, wrapper=wrapper)
    for rows in (7, 12):
        x, w, at = torch.randn(rows, 100), torch.randn(100), torch.tensor([2, -1, 0])
        actual, want = run(x, w, at), model(x, w, at)
        for a, b in zip(actual, want, strict=True):
            torch.testing.assert_close(a, b)
    assert {k.language for r in records for k in r.kernels} == {"halide"}
    assert "aten.lgamma.default" in {e.target for r in records for e in r.externs}
    if wrapper == "python":
        with pytest.raises(IndexError):
            run(x, w, torch.tensor([2, 12, 0]))


def test_sums_have_eagers_bits(compiled):
    run, _ = compiled(lambda x: (x.sum(0), x.mean(0), x.sum()), strict=True, numerics="bitwise")
    x = torch.randn(64, 96)
    for actual, want in zip(run(x), (x.sum(0), x.mean(0), x.sum()), strict=True):
        assert torch.equal(actual, want)


def test_an_autoscheduler(compiled):
    run, records = compiled(torch.special.expit, target="halide-mullapudi2016", strict=True)
    x = torch.randn(50, 70)
    torch.testing.assert_close(run(x), torch.sigmoid(x))
    assert {k.language for r in records for k in r.kernels} == {"halide"}


def test_without_halide_models_run_eagerly(compiled, monkeypatch):
    installed = importlib.metadata.version

    def version(name):
        if name == "halide":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    run, _ = compiled(torch.exp)
    x = torch.randn(5)
    with pytest.warns(GyratorWarning, match="GY-HALIDE-005"):
        assert torch.equal(run(x), torch.exp(x))


def test_the_target_and_the_language_lack_the_same():
    assert LACKING == WRITTEN_FOR
