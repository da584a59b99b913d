"""Which cells there are, and why some do not run."""

import subprocess
import sys

import pytest
import torch
from attrs import evolve

from gyrator_conformance.cells import Cell, Excuse, Keyword, Reason, Selection, excuse_of
from gyrator_conformance.models import all_models
from gyrator_conformance.profiles import Profile, UnknownTargetError, find_target

CELL = Cell("mlp", "pointwise", "cpu", "python", "static", "training", "float32")


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("mlp", True),
        ("not mlp", False),
        ("bert or mlp and static", True),
        ("(bert or mlp) and dynamic", False),
        ("not (bert or dynamic)", True),
        ("mlp and not training or cpu", True),
    ],
)
def test_keywords_read_as_pytests(text, matches):
    assert Keyword.read(text).matches(CELL.name) is matches


@pytest.mark.parametrize("text", ["and", "mlp or", "(mlp", "mlp )", "mlp bert"])
def test_bad_keywords_are_refused(text):
    with pytest.raises(ValueError, match="expression"):
        Keyword.read(text)


def test_a_selection_is_the_whole_product():
    models = list(all_models().values())
    cells = list(Selection(("a", "b"), ("python", "cpp", "fx")).cells(models))
    assert len(cells) == len(models) * 2 * 3 * 2 * 2 * 3 == len({c.name for c in cells})
    few = list(Selection(("a",), ("fx",), ("static",), ("training",), ("float16",)).cells(models))
    assert [c.model for c in few] == [m.name for m in models]
    assert {c.family for c in few} >= {"conv", "attention", "scan", "scatter", "extern"}


def test_graphs_are_a_part_of_the_product_and_need_a_device_that_has_them():
    models = all_models()
    small = Selection(("cpu",), ("python",), graphs=("off", "on"), keyword="swiglu and float32")
    names = [c.name for c in small.cells(models.values())]
    assert len(names) == 8 and names[4] == "cpu/python+graphs/swiglu/static/inference/float32"
    chosen = find_target("cpu")
    replayed = evolve(CELL, graphs="on")
    assert excuse_of(replayed, models["mlp"], chosen.excuses).reason is Reason.GRAPHS
    assert excuse_of(CELL, models["mlp"], chosen.excuses) is None
    able = evolve(chosen.target, capabilities=evolve(chosen.target.capabilities, graphs=True))
    assert excuse_of(replayed, models["mlp"], evolve(chosen, target=able).excuses) is None


def test_packages_are_a_part_of_the_product_and_are_for_inference():
    models = all_models()
    small = Selection(("cpu",), ("python",), package=("off", "on"), keyword="swiglu and float32")
    names = [c.name for c in small.cells(models.values())]
    assert len(names) == 8
    assert names[4] == "cpu/python+package/swiglu/static/inference/float32"
    assert evolve(CELL, package="standalone").host == "python+standalone"
    chosen = find_target("cpu")
    packaged = evolve(CELL, package="on", mode="inference")
    assert excuse_of(packaged, models["mlp"], chosen.excuses) is None
    trained = evolve(packaged, mode="training")
    assert excuse_of(trained, models["mlp"], chosen.excuses).reason is Reason.TRAINING
    other = find_target("cpu-interpreter")
    assert excuse_of(packaged, models["mlp"], other.excuses).reason is Reason.EXPORT
    group = evolve(packaged, model="expert-exchange", family="collective")
    assert excuse_of(group, models["expert-exchange"], chosen.excuses).reason is Reason.LIBRARY


def test_every_excuse_has_a_reason_of_the_list():
    models = all_models()
    cell = Cell("moe-routing", "sort", "t", "python", "dynamic", "training", "float16")
    fixed = Excuse(Reason.DYNAMIC, "fixed sizes", shapes=frozenset({"dynamic"}))
    other = Excuse(Reason.MEMORY, "small", models=frozenset({"vit"}), modes=frozenset({"training"}))
    assert excuse_of(cell, models["moe-routing"], (other, fixed)) is fixed
    assert excuse_of(cell, models["moe-routing"], (other,)) is None
    static = Cell("adamw-step", "pointwise", "t", "python", "static", "training", "float32")
    assert excuse_of(static, models["adamw-step"], ()).reason is Reason.NO_GRADIENT
    narrow = Cell("fourier-mixer", "extern", "t", "python", "static", "inference", "float16")
    assert excuse_of(narrow, models["fourier-mixer"], ()).reason is Reason.EAGER_DTYPE


def test_reasons_are_told_apart():
    assert len({reason.mark for reason in Reason}) == len(Reason)
    assert all(reason.meaning for reason in Reason)


def test_collectives_run_where_a_process_group_is_declared():
    def reasons(chosen):
        cell = evolve(CELL, family="collective")
        return [e.reason for e in chosen.excuses if e.covers(cell)]

    host = find_target("cpu")
    assert host.group == "gloo" and not reasons(host)
    there = evolve(host, target=evolve(host.target, device="mydev"))
    assert reasons(there) == [Reason.LIBRARY]
    declared = evolve(there, profile=Profile(group="cpu:gloo,mydev:mycc"))
    assert declared.group == "cpu:gloo,mydev:mycc" and not reasons(declared)


def test_targets_are_found_by_name():
    found = find_target("cpu-interpreter")
    assert found.definition.name == "cpu-interpreter" and found.target.arch == "interpreter"
    assert find_target("cpu").target.kernel_backend == "c++"
    assert find_target("cpu").excuses_for("morse")[0].reason is Reason.WRAPPER
    with pytest.raises(UnknownTargetError, match=r"no target 'abacus'.*cpu-interpreter"):
        find_target("abacus")


@pytest.mark.parametrize("name", sorted(all_models()))
def test_models_draw_inputs_of_each_size(name):
    model = all_models()[name]
    assert len(set(model.sizes)) == 3
    first, again = (model.inputs(torch.Generator().manual_seed(1), 5) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_the_list_ends_quietly_where_its_reader_does():
    command = [sys.executable, "-m", "gyrator_conformance", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # before anything is written to it
        assert (process.stderr.read(), process.wait()) == (b"", 0)
