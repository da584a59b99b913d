"""Families of published models: which there are, and that what differs is noticed."""

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="families are built of its configurations")

from gyrator.config import Config
from gyrator.engine.pipeline import Stages
from gyrator_conformance.families.__main__ import main
from gyrator_conformance.families.judge import FamilyJudge, Form
from gyrator_conformance.families.table import all_families
from gyrator_conformance.models import Model
from gyrator_conformance.models.model import Function, floats


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return FamilyJudge(Config(tmp_path_factory.mktemp("cache"), 1 << 30, ""))


def test_there_are_families_of_every_kind():
    kinds = [model.family for model in all_families().values()]
    assert len(kinds) >= 100
    assert {k for k in kinds if kinds.count(k) >= 5} >= {
        "encoder", "decoder", "both", "sight", "sound", "several", "series",
    }  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        Form("fnet", "training"),
        Form("funnel"),
        pytest.param(Form("qwen3", shapes="dynamic"), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_family_is_right(judge, form):
    found = judge.judge(all_families()[form.name], form)
    assert not found.kind and found.error <= found.bound, found
    assert found.kernels and found.graphs >= 1 and not found.eager and found.seconds > 0


def model(function):
    return Model("made-up", "series", lambda: Function(function), floats(3))


def test_a_family_that_differs_is_found(judge):
    wrong = lambda x: x.cos() if torch.compiler.is_compiling() else x.sin()  # noqa: E731
    found = judge.judge(model(wrong), Form("made-up"))
    assert found.kind == "value" and found.explained == "torch"


def test_a_difference_before_a_head_that_starts_at_0_is_found(judge):
    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)
            nn.init.zeros_(self.head.weight)

        def forward(self, x):
            return self.head(x.cos() if torch.compiler.is_compiling() else x.sin())

    found = judge.judge(Model("headed", "series", Headed, floats(3)), Form("headed"))
    assert found.kind == "value"


def test_breaks_and_graphs_that_run_eagerly_are_counted(judge, monkeypatch):
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    found = judge.judge(model(broken), Form("made-up"))
    assert (found.kind, found.graphs) == ("", 2) and found.breaks

    def refuse(*_):
        raise ValueError("no program")

    monkeypatch.setattr(Stages, "product", refuse)
    found = judge.judge(model(torch.sin), Form("made-up"))
    assert (found.kind, found.detail, found.eager) == ("eager", "no program", 1)


def test_an_unknown_family_is_refused_and_forms_are_listed(capsys):
    assert main(["--only", "no-such"]) == 2
    assert main(["--only", "bert,encodec", "--list"]) == 0
    assert "bert/training/static" in (said := capsys.readouterr().out)
    assert "encodec/inference/static" in said and "encodec/training/static" not in said
