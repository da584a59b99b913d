"""The benchmark still runs: on a small model with few rounds, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

CPU = Path(__file__).parents[1] / "cpu.py"


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


def test_an_unknown_model_is_refused():
    """The command line says what there is."""
    done = subprocess.run(
        [sys.executable, str(CPU), "--models", "VGG"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'VGG' is none of BERT" in done.stderr
