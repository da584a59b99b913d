"""Ops of torch's database: which cases there are, and that what differs is noticed."""

import pytest
import torch

from gyrator.config import Config

pytest.importorskip(
    "torch.testing._internal.common_methods_invocations",
    reason="needs expecttest",
    exc_type=ImportError,
)

from gyrator_conformance.opinfo.judge import OpJudge
from gyrator_conformance.opinfo.samples import (
    LAYOUTS,
    UNTOLD,
    Case,
    calls,
    cases,
    copied,
    database,
)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return OpJudge(Config(tmp_path_factory.mktemp("cache"), 1 << 30, ""))


def test_all_ops_are_there_once():
    chosen = list(cases((), LAYOUTS, ("forward", "gradient"), ("static", "dynamic")))
    assert len({str(case) for case in chosen}) == len(chosen)
    here = {name for name, info in database().items() if info.supported_dtypes("cpu")}
    assert {case.op for case in chosen} == here and here >= set(UNTOLD)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_lie_as_samples_do(layout):
    for call in calls(Case("nn.functional.max_pool2d", "float32", layout)):
        for t in call.tensors:
            made = copied(t)
            assert (made.stride(), made.storage_offset()) == (t.stride(), t.storage_offset())
            assert torch.equal(made, t) and made.data_ptr() != t.data_ptr()


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_op_is_judged(judge, dynamic):
    found = judge.judge(Case("lerp", "float32", "strided", True, dynamic))
    assert found.samples > 2 and found.graphs >= 2 and not found.findings


def test_an_op_that_differs_is_found(judge, monkeypatch):
    info = database()["sin"]
    wrong = lambda x: x.cos() if torch.compiler.is_compiling() else x.sin()  # noqa: E731
    monkeypatch.setattr(info, "op", wrong)
    found = judge.judge(Case("sin", "float32"))
    assert {kind for kind, _, _ in found.findings} == {"value"}
