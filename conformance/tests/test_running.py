"""Cells run, wrong results fail, and a worker outlives its cells."""

import sys

import pytest
import torch
from attrs import evolve

from gyrator.config import Config
from gyrator.session import Session
from gyrator_conformance import packages
from gyrator_conformance.cells import Cell
from gyrator_conformance.models import all_models
from gyrator_conformance.process import LineProcess
from gyrator_conformance.profiles import find_target
from gyrator_conformance.running import CellRunner
from gyrator_conformance.suite import Worker, run_cells
from gyrator_lowering.default import FAMILIES
from gyrator_lowering.table import TableBuilder


def cell(model, target="cpu", wrapper="python", shapes="static", mode="inference", dtype="float32"):
    return Cell(model, all_models()[model].family, target, wrapper, shapes, mode, dtype)


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    """Return the runner of a target, its cache in a folder of this test run."""
    config = Config(tmp_path_factory.mktemp("cache"), 1 << 30, "")

    def make(target, kind=CellRunner):
        chosen = find_target(target)
        return kind(evolve(chosen, config=evolve(config, targets=frozenset({target}))))

    return make


@pytest.mark.parametrize("target", ["cpu", "cpu-interpreter"])
def test_a_slice_of_the_matrix(runner, target):
    run = runner(target).run
    for wanted in (
        cell("mlp", target, shapes="dynamic", mode="training"),
        cell("llama-kv-cache", target, dtype="bfloat16"),
        cell("adamw-step", target, wrapper="fx"),
        cell("moe-routing", target, mode="training", dtype="float16"),
        cell("vae", target, mode="training"),
    ):
        result = run(wanted, all_models()[wanted.model])
        assert result.status == "pass", result
        assert result.kernels and result.bound >= result.error


def test_packages_run_elsewhere_and_are_judged(runner):
    run = runner("cpu").run
    for wanted in (
        cell("mlp", shapes="dynamic"),
        cell("adamw-step", dtype="bfloat16"),
        cell("least-squares"),
    ):
        result = run(evolve(wanted, package="on"), all_models()[wanted.model])
        assert result.status == "pass", result
        assert result.bound >= result.error
    refused = evolve(cell("llama-kv-cache", shapes="dynamic"), package="on")
    result = run(refused, all_models()["llama-kv-cache"])
    assert (result.status, result.reason) == ("reason", "export"), result


STANDALONE = (
    "mlp", "swiglu", "activations", "film", "adamw-step", "layer-norm", "batch-norm", "statistics",
    "cross-entropy", "pixel-shuffle", "rearrangements", "mixer", "lora", "cnn", "resnet",
    "mobilenet", "unet", "wavenet", "conv3d", "inception", "mamba", "lstm", "gru",
    "sorted-pooling", "graph-attention", "masked-update", "vit", "bert", "gpt", "t5",
)  # fmt: skip
"""Models that run without torch: those of every family whose work kernels can do."""


@pytest.mark.long
def test_standalone_packages_run_without_torch_and_are_judged(runner):
    run = runner("cpu").run
    for name in STANDALONE:
        result = run(evolve(cell(name), package="standalone"), all_models()[name])
        assert result.status == "pass", result
    wanted = evolve(cell("gpt", shapes="dynamic", dtype="bfloat16"), package="standalone")
    assert run(wanted, all_models()["gpt"]).status == "pass"
    for name in ("bilinear", "fourier-mixer"):
        result = run(evolve(cell(name), package="standalone"), all_models()[name])
        assert (result.status, result.reason) == ("reason", "library"), result


def test_a_package_that_imports_the_compiler_fails(runner, monkeypatch):
    child = "import sys, runpy, gyrator; runpy.run_path(sys.argv[1], run_name='__main__')"
    wanted = evolve(cell("mlp"), package="on")
    found = runner("cpu")
    process = LineProcess((sys.executable, "-c", child, str(packages.CHILD)), 120.0)
    found._packages = packages.Packager(child=process)
    result = found.run(wanted, all_models()["mlp"])
    assert result.status == "fail", result
    assert "a package imports gyrator" in result.message


def test_triton_kernels_run_without_a_gpu(runner):
    for name in ("rearrangements", "group-norm"):
        result = runner("cpu-triton").run(
            cell(name, "cpu-triton", shapes="dynamic"), all_models()[name]
        )
        assert result.status == "pass", result
        assert result.kernels


class Wrong(CellRunner):
    """A compiler with one rule that is wrong by a thousandth."""

    def _session(self, cell, model):
        table = TableBuilder()
        for register in FAMILIES:
            register(table)

        @table.rule("aten.mul.Tensor", replace=True)
        def multiply(b, x, y):
            return b.pointwise(lambda ops, index: ops.get(x, index) * 1.001)

        return Session(
            rules=table.build(), config=self.chosen.config, options={"strict": True},
            observer=self._records.append,
        )  # fmt: skip


def test_a_wrong_rule_fails_its_cells(runner):
    result = runner("cpu", Wrong).run(cell("swiglu"), all_models()["swiglu"])
    assert result.status == "fail" and result.error > result.bound


@pytest.mark.parametrize(
    ("errors", "status"),
    [((3, 1, 1, 1, 1), "pass"), ((3, 3, 3, 2, 2), "fail"), ((5,), "fail"), ((3, 1, 5), "fail")],
)
def test_a_draw_above_the_bound_is_one_of_five(runner, errors, status):
    left = list(errors)

    class Drawn(CellRunner):
        def _error(self, cell, model, seed):
            assert seed == len(errors) - len(left)
            return left.pop(0) * 1e-6, 1e-6, 2e-6

    result = runner("cpu", Drawn).run(cell("mlp"), all_models()["mlp"])
    assert (result.status, left) == (status, [])


def test_what_a_cell_raises_is_its_failure(runner):
    result = runner("cpu").run(cell("mlp", wrapper="morse"), all_models()["mlp"])
    assert result.status == "fail" and "morse" in result.message


MORTAL = """
import os, sys, time
for line in sys.stdin:
    if '"mlp"' in line:
        print("last words", file=sys.stderr, flush=True)
        os.abort()
    if '"cnn"' in line:
        time.sleep(60)
    cell = line.strip()
    print('{"cell": ' + cell + ', "status": "pass"}', flush=True)
"""


def test_a_worker_is_started_again_after_a_crash_and_a_timeout():
    models, targets = all_models(), {"cpu": find_target("cpu")}
    names = ("swiglu", "mlp", "film", "cnn", "lora", "adamw-step")
    cells = [cell(name, mode="training") for name in names]
    seen = []
    worker = Worker(2.0, command=(sys.executable, "-c", MORTAL))
    results = run_cells(cells, models, targets, [worker], seen.append)
    assert [r.status for r in results] == ["pass", "fail", "pass", "fail", "pass", "reason"]
    assert results[1].message == "crashed: SIGABRT; last words"
    assert results[3].message == "took more than 2 s"
    assert results[5].reason == "no-gradient"
    assert seen == results


PATIENT = """
import sys, time
for line in sys.stdin:
    time.sleep(0.3)
    print('{"cell": ' + line.strip() + ', "status": "pass"}', flush=True)
"""


def test_workers_run_side_by_side_and_stop_when_time_is_up():
    models, targets = all_models(), {"cpu": find_target("cpu")}
    modes = ("inference", "training")
    cells = [cell(name, mode=mode) for mode in modes for name in ("mlp", "cnn")]
    workers = [Worker(20.0, command=(sys.executable, "-c", PATIENT)) for _ in range(2)]
    seen = []
    results = run_cells(cells, models, targets, workers, seen.append)
    assert [r.cell for r in results] == cells and all(r.status == "pass" for r in results)
    assert {r.cell.model for r in seen[:2]} == {"mlp", "cnn"}
    assert run_cells(cells, models, targets, workers, seen.append, 0.0) == []


def test_a_call_that_overwrites_what_the_one_before_gave_fails(runner):
    class Careless(CellRunner):
        def _session(self, cell, model):
            class Backend:
                def backend(self, gm, inputs):
                    made = []

                    def call(*args):
                        results = [t.detach() for t in gm(*args)]
                        if not made:
                            made.extend(t.clone() for t in results)
                        for old, new in zip(made, results, strict=True):
                            old.copy_(new)
                        return [t.detach() for t in made]

                    return call

            return Backend()

    result = runner("cpu", Careless).run(cell("lora"), all_models()["lora"])
    assert result.status == "fail" and result.error > result.bound


def test_an_interrupt_ends_a_run_at_once_and_keeps_what_was_found():
    def shown(result):
        seen.append(result)
        raise KeyboardInterrupt

    models, targets = all_models(), {"cpu": find_target("cpu")}
    seen = []
    endless = "import time\nwhile True: time.sleep(1)"
    workers = [Worker(1e6, command=(sys.executable, "-c", text)) for text in (PATIENT, endless)]
    with pytest.raises(KeyboardInterrupt):
        run_cells([cell("mlp"), cell("cnn"), cell("vit")], models, targets, workers, shown)
    assert len(seen) == 1 and seen[0].status == "pass"
    assert not any(worker.running for worker in workers)


def test_results_of_other_dtypes_or_shapes_fail(runner):
    class Rounded(CellRunner):
        def _session(self, cell, model):
            class Backend:
                def backend(self, gm, inputs):
                    return lambda *args: [t.double() for t in gm(*args)]

            return Backend()

    result = runner("cpu", Rounded).run(cell("lora"), all_models()["lora"])
    assert result.status == "fail" and "torch.float64" in result.message
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    ("model", "shapes", "mode", "dtype"),
    [
        ("layer-norm", "dynamic", "training", "bfloat16"),
        ("mlp", "static", "training", "float32"),
        ("unet", "dynamic", "inference", "float32"),
    ],
)
def test_kernels_agree_with_their_ir(runner, model, shapes, mode, dtype):
    made = evolve(runner("cpu"), verify=True)
    wanted = cell(model, shapes=shapes, mode=mode, dtype=dtype)
    result = made.run(wanted, all_models()[model])
    assert result.status == "pass", result.message
    assert result.verified == result.kernels > 0
