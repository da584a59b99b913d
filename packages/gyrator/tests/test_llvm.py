"""The target `llvm`: models on kernels that LLVM compiles in this process, from every host
language, and in the place of C++ on a machine without a compiler."""

import importlib.util
from functools import partial

import pytest
import torch

from gyrator.cli.doctor import examine
from gyrator.config import read_config
from gyrator.targets import discover
from gyrator.targets.llvm import LACKING
from gyrator_codegen_llvm.ops import LACKING as WRITTEN_FOR
from gyrator_runtime.warn import GyratorWarning


@pytest.fixture
def compiled(on_target):
    return partial(on_target, target="llvm")


def model(x, w, at):
    normal = torch.nn.functional.layer_norm(x, x.shape[-1:])
    half = (normal * w).to(torch.bfloat16).float()
    picked = half[at].cumsum(-1) + torch.lgamma(x.abs() + 1)[at]
    return torch.softmax(picked, -1), x.argmax(-1), (x > 0).sum(0), x.sort(-1).values


@pytest.mark.parametrize("wrapper", ["python", "cpp", pytest.param("fx", marks=pytest.mark.long)])
def test_a_model(compiled, wrapper):
    run, records = compiled(model, dynamic=True, strict=True, wrapper=wrapper)
    for rows in (7, 12):
        x, w, at = torch.randn(rows, 100), torch.randn(100), torch.tensor([2, -1, 0])
        for a, b in zip(run(x, w, at), model(x, w, at), strict=True):
            torch.testing.assert_close(a, b)
    assert {k.language for r in records for k in r.kernels} == {"llvm"}
    called = {e.target for r in records for e in r.externs}
    assert {"aten.lgamma.default"} < called and any("sort" in name for name in called)
    if wrapper == "python":
        with pytest.raises(IndexError):
            run(x, w, torch.tensor([2, 12, 0]))


def test_training(compiled):
    def loss(x, w):
        hidden = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x @ w, (24,)))
        return torch.nn.functional.cross_entropy(hidden, torch.arange(9))

    run, records = compiled(loss, strict=True)
    x, w = torch.randn(9, 16, requires_grad=True), torch.randn(16, 24, requires_grad=True)
    got = torch.autograd.grad(run(x, w), (x, w))
    want = torch.autograd.grad(loss(x, w), (x, w))
    torch.testing.assert_close(got, want)
    assert {r.phase for r in records} == {"forward", "backward"}


def test_a_second_session_compiles_nothing(compiled, monkeypatch):
    x = torch.randn(50, 70)
    run, _ = compiled(torch.special.expit, strict=True)
    torch.testing.assert_close(run(x), torch.sigmoid(x))
    torch._dynamo.reset()
    monkeypatch.setattr("gyrator_codegen_llvm.build.compiled", None)
    run, records = compiled(torch.special.expit, strict=True)
    torch.testing.assert_close(run(x), torch.sigmoid(x))
    assert [r.cached for r in records] == [True]


def test_a_module_that_llvm_rejects(compiled, monkeypatch):
    def rejected(text, arch):
        raise RuntimeError("expected an instruction")

    monkeypatch.setattr("gyrator_codegen_llvm.build.compiled", rejected)
    run, records = compiled(torch.special.expit)
    x = torch.randn(5, 7)
    with pytest.warns(GyratorWarning, match="GY-LLVM-007.*\n?.*expected an instruction"):
        torch.testing.assert_close(run(x), torch.sigmoid(x))
    assert all(r.fallback for r in records)


ALONE = {"CXX": "/nonexistent/c++", "PATH": ""}
CALLS = """
session = Session(observer=records.append)
got = torch.compile(f, backend=session.backend)(x, w)
right = torch.allclose(got, f(x, w), rtol=1e-5, atol=1e-6)
report(right=right, languages=sorted({k.language for r in records for k in r.kernels}))
"""


def test_without_a_compiler_llvm_builds_the_kernels(child):
    for cached in (False, True):
        actual = child(CALLS, ALONE)
        assert actual["right"] and actual["languages"] == ["llvm"]
        ((_, kernels, found, fallback),) = actual["records"]
        assert kernels and found is cached and not fallback
        told = [w for w in actual["warnings"] if "GY-RUNTIME-001" not in w]
        assert len(told) == (not cached) and all("GY-LLVM-008" in w for w in told)


def test_programs_of_a_compiler_are_used_without_it(child):
    assert child(CALLS)["languages"] == ["c++"]
    actual = child(CALLS, ALONE)
    assert actual["languages"] == ["c++"] and actual["records"][0][2]


def test_the_doctor_tells(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    (found,) = [
        f for f in examine(read_config({"GYRATOR_CACHE_DIR": str(tmp_path)}))
        if f.subject == "C++ compiler"
    ]  # fmt: skip
    assert found.state == "untested" and "LLVM" in found.detail


def test_without_llvm_its_name_is_ignored(monkeypatch):
    find = importlib.util.find_spec
    missing = "llvmlite"
    monkeypatch.setattr(
        "gyrator.targets.llvm.find_spec", lambda name: None if name == missing else find(name)
    )
    with pytest.warns(GyratorWarning, match="GY-LLVM-006"):
        targets = discover(read_config({"GYRATOR_TARGETS": "llvm"}))
    assert targets["cpu"][0].name == "cpu"


def test_the_target_and_the_language_lack_the_same():
    assert LACKING == WRITTEN_FOR
