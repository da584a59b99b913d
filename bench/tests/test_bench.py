"""The benchmarks still run: on little with few rounds, in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from cpu_peers import failure

BENCH = Path(__file__).parents[1]
CPU = BENCH / "cpu.py"


def test_run_and_overhead_on_the_smallest_model(tmp_path):
    """The JSON file holds a ratio for each measurement, and the table names the workload."""
    out = tmp_path / "cpu.json"
    only = ["--only", "run,overhead", "--models", "ViT", "--steps", "inference"]
    command = [sys.executable, str(CPU), *only, "--quick", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert report["environment"]["torch"]
    sections = report["sections"]
    assert sections["run"]["ViT, inference"]["inductor/gyrator"] > 0
    assert sections["overhead"]["1 separate"]["launches"] == 1
    assert "ViT, inference" in report["tables"]["run"]


def test_runtimes_in_processes_of_their_own(tmp_path):
    """There is a time of each subject that was asked for."""
    out = tmp_path / "peers.json"
    command = [sys.executable, str(BENCH / "cpu_peers.py"), "--models", "MLP", "--turns", "1"]
    subjects = ("eager", "gyrator frozen", "gyrator package")
    chosen = ["--subjects", ",".join(subjects), "--threads", "1", "--json", str(out)]
    done = subprocess.run([*command, *chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    times = json.loads(out.read_text())["milliseconds"]["1"]["MLP"]
    assert all(times[subject] > 0 for subject in subjects)


def test_results_as_far_off_as_eager_mode_count():
    assert not failure("inductor", "float32", {"error": 9e-4, "eager": 1e-7})
    assert failure("inductor", "float32", {"error": 2e-3, "eager": 9e-4})
    assert not failure("inductor", "float32", {"error": 2e-3, "eager": 1.1e-3})
    assert not failure("eager", "float32", {"error": 0.01, "eager": 0.001})
    assert failure("gyrator", "int8", {"failure": "ended silently"}) == "ended silently"


@pytest.mark.parametrize(("step", "dtype"), [("training", "float32"), ("inference", "bfloat16")])
def test_peers_train_and_compute_in_bfloat16(tmp_path, step, dtype):
    """There is a time of each subject, so its result or all gradients were close to eager's."""
    out = tmp_path / "peers.json"
    command = [sys.executable, str(BENCH / "cpu_peers.py"), "--models", "MLP", "--turns", "1"]
    chosen = ["--subjects", "gyrator,eager", "--step", step, "--dtype", dtype, "--threads", "1"]
    done = subprocess.run(
        [*command, *chosen, "--json", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    times = report["milliseconds"]["1"]["MLP"]
    assert (report["step"], report["dtype"]) == (step, dtype)
    assert times["gyrator"] > 0 and times["eager"] > 0


def test_peak_memory_of_peers(tmp_path):
    """The result of an MLP and its gradients need what they do in eager mode, or less."""
    out = tmp_path / "peers.json"
    command = [sys.executable, str(BENCH / "cpu_peers.py"), "--models", "MLP", "--memory"]
    chosen = ["--subjects", "gyrator,eager", "--step", "training", "--json", str(out)]
    done = subprocess.run([*command, *chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    megabytes = json.loads(out.read_text())["megabytes"]["1"]["MLP"]
    gradients = 4e-6 * (256 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 256 + 256)
    assert gradients < megabytes["gyrator"] <= megabytes["eager"] < 2 * gradients


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (["--memory", "--subjects", "openvino"], "here: openvino"),
        (["--step", "training", "--subjects", "openvino"], "here: openvino"),
        (["--dtype", "bfloat16", "--subjects", "onnxruntime"], "here: onnxruntime"),
        (["--step", "training", "--dtype", "int8"], "int8 is for inference only"),
    ],
)
def test_peers_that_cannot_are_refused(chosen, said):
    """The command line says so before anything is built."""
    command = [sys.executable, str(BENCH / "cpu_peers.py"), *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def test_packages_of_both_compilers(tmp_path):
    """Builds, loads and calls are measured on both sides."""
    out = tmp_path / "aot.json"
    command = [sys.executable, str(BENCH / "aot.py"), "--models", "tiny", "--rounds", "2"]
    done = subprocess.run(
        [*command, "--json", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["models"]["tiny"]
    for side in ("gyrator", "inductor"):
        assert found["built"][side]["cpu"] > 0 and found["built"][side]["code"] > 0
        assert found["load"][side] > 0 and found["times"][side]["thread_min"] > 0
        assert found["native"]["load"][side] > 0 and found["native"]["call"][side] > 0


def test_an_unknown_model_is_refused():
    """The command line says what there is."""
    done = subprocess.run(
        [sys.executable, str(CPU), "--models", "VGG"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'VGG' is none of BERT" in done.stderr


def test_operations_with_and_without_gradients(tmp_path):
    """The table has a row for each operation that was asked for."""
    out = tmp_path / "ops.json"
    command = [sys.executable, str(BENCH / "ops.py"), "--only", "prod", "--rounds", "1"]
    done = subprocess.run([*command, "--json", str(out)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    times = json.loads(out.read_text())["seconds"]
    assert {"prod", "prod, with gradients"} <= times.keys()
    assert all(t > 0 for row in times.values() for t in row.values())
