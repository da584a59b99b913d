"""Ops of torch's database: which cases there are, and that what differs is noticed."""

import pytest
import torch
from attrs import evolve

from gyrator.config import Config

pytest.importorskip(
    "torch.testing._internal.common_methods_invocations",
    reason="needs expecttest",
    exc_type=ImportError,
)

from gyrator_conformance.opinfo.judge import OpJudge, in_other_order, overflows
from gyrator_conformance.opinfo.samples import (
    LAYOUTS,
    UNORDERED,
    UNWRITTEN,
    Case,
    calls,
    cases,
    copied,
    database,
    slice_of,
)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return OpJudge(Config(tmp_path_factory.mktemp("cache"), 1 << 30, ""))


def test_all_ops_are_there_once():
    chosen = list(cases((), LAYOUTS, ("forward", "gradient"), ("static", "dynamic")))
    assert len({str(case) for case in chosen}) == len(chosen)
    here = {name for name, info in database().items() if info.supported_dtypes("cpu")}
    assert {case.op for case in chosen} == here
    assert here >= UNWRITTEN | set(UNORDERED)


def test_slices_are_of_all_kinds_and_make_up_all():
    chosen = list(
        cases(("float32", "int8"), LAYOUTS, ("forward", "gradient"), ("static", "dynamic"))
    )
    slices = [slice_of(chosen, k, 40) for k in range(1, 41)]
    assert sorted(map(str, chosen)) == sorted(str(case) for part in slices for case in part)
    kinds = {(c.dtype, c.layout, c.gradients, c.dynamic) for c in chosen}
    for part in slices:
        assert {(c.dtype, c.layout, c.gradients, c.dynamic) for c in part} == kinds


def test_a_slice_of_all_ops(judge):
    """One case in 3,500, with one sample of each; `nox -s opinfo` takes the rest."""
    chosen = list(cases((), LAYOUTS, ("forward", "gradient"), ("static", "dynamic")))
    found = {c: judge.judge(evolve(c, most=1)) for c in slice_of(chosen, 1, len(chosen) // 15)}
    wrong = {str(c): f for c, o in found.items() for f in o.findings if not f[2]}
    assert not wrong and sum(o.samples for o in found.values()) >= 8


def test_samples_are_spread_over_all_when_they_are_few():
    every = calls(Case("argsort", "float32"))
    few = calls(Case("argsort", "float32", most=5))
    assert len(every) > 20 and 3 <= len(few) <= 5
    assert few[-1].tensors[0].shape == every[(len(few) - 1) * -(-len(every) // 5)].tensors[0].shape


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


@pytest.mark.parametrize(
    ("ours", "front", "reason"), [(1, 1, "torch"), (1, 2, ""), (1, None, ""), (None, None, "torch")]
)
def test_torch_explains_what_it_gets_wrong_alike_and_nothing_else(
    judge, monkeypatch, ours, front, reason
):
    def off(run, by):
        if by is None:
            return lambda *tensors: 1 // 0
        return lambda *tensors: [r + by for r in run(*tensors)]

    made = lambda run, case, backend: off(run, front if backend == "aot_eager" else ours)  # noqa: E731
    monkeypatch.setattr("gyrator_conformance.opinfo.judge._compiled", made)
    found = judge.judge(Case("sin", "float32", most=1))
    assert found.findings and {why for _, _, why in found.findings} == {reason}


def test_equal_elements_may_come_in_any_order():
    x = torch.tensor([2, 1, 2])
    assert in_other_order(x, torch.tensor([1, 0, 2]), torch.tensor([1, 2, 0]))
    assert not in_other_order(x, torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]))
    slopes = torch.tensor([0.5, 3.0, 7.0])
    assert in_other_order(x, slopes[[2, 1, 0]], slopes)
    assert not in_other_order(x, slopes[[1, 0, 2]], slopes)


def test_what_overflows_in_eager_mode_alone_has_an_explanation():
    exact = torch.tensor([0.5, float("nan"), 2.0], dtype=torch.float64)
    eager = torch.tensor([float("nan"), float("nan"), 2.0])
    assert overflows(exact.float(), eager, exact)
    assert not overflows(torch.tensor([0.25, float("nan"), 2.0]), eager, exact)
    assert not overflows(torch.tensor([0.5, 1.0, 2.0]), eager, exact)
    assert not overflows(torch.tensor([0.5, float("nan"), 3.0]), eager, exact)
    assert not overflows(eager, exact.float(), exact)


def test_fresh_memory_holds_what_eager_mode_fills_it_with(judge):
    for op in ("empty", "new_empty_strided", "empty_like"):
        for dtype in ("bool", "int16", "bfloat16", "complex64"):
            found = judge.judge(Case(op, dtype, most=2))
            assert found.samples and found.graphs and not found.findings
    assert not torch.are_deterministic_algorithms_enabled()
