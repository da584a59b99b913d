"""What PyTorch's own logs and traces say of our compiles, and options from the environment."""

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from forked import run_forked
from runner_cache import with_runner

from gyrator.options import (
    TORCHINDUCTOR,
    OptionError,
    Options,
    environment_options,
    list_options,
    make_options,
)
from gyrator_runtime.warn import GyratorWarning

# What `import torch` does with the variables: the process is forked from one that has done it.
_SETUP = """
from torch._logging import _internal
_internal.LOG_TRACE_HANDLER = None
_internal._init_logs()
"""


_PROGRAM = """
import torch
@torch.compile(backend="gyrator")
def f(x):
    return torch.linalg.det(x.relu()) + x.softmax(-1).sum()
f(torch.randn(4, 4))
"""


_TRAINING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
step = torch.compile(model, backend="gyrator")
for rows in (4, 6):
    step(torch.randn(rows, 8)).softmax(-1).square().sum().backward()
"""


def _run(tmp_path: Path, program: str = _PROGRAM, **environment: str) -> str:
    cache = with_runner(tmp_path / "cache")
    variables = os.environ | {"GYRATOR_CACHE_DIR": str(cache)} | environment
    actual = run_forked(_SETUP + program, environment=variables)
    assert actual.returncode == 0, actual.stderr
    return actual.stderr


def test_torch_logs_and_traces_show_graphs_code_and_decisions(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    names = "+gyrator,output_code,kernel_code,schedule,fusion,perf_hints"
    message = _run(tmp_path, TORCH_LOGS=names, TORCH_TRACE=str(folder))
    assert "compiled inference graph of " in message
    assert "[__output_code] def program_main(" in message
    assert "[__kernel_code] " in message and "softmax" in message
    assert "[__schedule] " in message and "[__fusion] " in message
    assert "[__perf_hints] aten._linalg_det.default is an ATen call" in message
    heads = _heads(folder)
    retained = {h["artifact"]["name"] for h in heads if "artifact" in h}
    parts = (
        "fx.gy",
        "fx_passes.gy",
        "cache_miss.json",
        "repro.py",
        "loop.gy",
        "kernel.gy",
        "tile.gy",
        "host.gy",
        "host.py",
        "graph.json",
    )
    assert {f"gyrator_{part}" for part in (*parts, "output_code")} <= retained

    # Stored programs are compiled again for a trace folder.
    debug = {"TORCH_COMPILE_DEBUG": "1", "TORCH_COMPILE_DEBUG_DIR": str(tmp_path)}
    assert "compiled inference graph of " in _run(tmp_path, TORCH_LOGS="+gyrator", **debug)
    assert list((tmp_path / "torch_compile_debug/gyrator").glob("*/loop.gy"))
    assert "loaded inference graph of " in _run(tmp_path, TORCH_LOGS="+gyrator")


def _heads(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
    return [json.loads(line[line.index("{") :]) for line in lines if line[:1] == "V"]


def test_both_passes_of_a_training_step_belong_to_their_frame(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    _run(tmp_path, _TRAINING, TORCH_TRACE=str(folder))
    heads = _heads(folder)
    ours = [h for h in heads if h.get("artifact", {}).get("name", "").startswith("gyrator_")]
    assert {h["frame_compile_id"] for h in ours} == {0, 1}  # the second with a symbol
    graphs = [h for h in ours if h["artifact"]["name"] == "gyrator_graph.json"]
    assert len(graphs) == 4
    # That of a graph with symbols is compiled with its forward pass.
    assert sum("bwd_compilation_metrics" in h for h in heads) == 1
    text = "".join(file.read_text() for file in folder.iterdir())
    assert '"gyrator.lower"' in text and '"gyrator.build"' in text  # Perfetto's events


def test_the_environment_sets_any_option_that_the_program_does_not() -> None:
    actual = environment_options({"GYRATOR_NUMERICS": "fast", "GYRATOR_FUSION": "0", "PATH": "x"})
    assert actual == Options(numerics="fast", fusion=False)
    assert make_options(options={"numerics": "eager"}, base=actual).numerics == "eager"
    with pytest.raises(OptionError, match=r"GY-OPTION-003.*'numerics'"):
        environment_options({"GYRATOR_NUMERICS": "fastest"})
    traced = make_options(options={"trace_dir": Path("/traces")}, base=Options())
    assert traced.trace_dir == "/traces"


def test_a_variable_of_nearly_the_right_name_is_warned_of() -> None:
    with pytest.warns(GyratorWarning, match=r"GY-OPTION-007.*GYRATOR_NUMERIC .*\n.*_NUMERICS\?"):
        assert environment_options({"GYRATOR_NUMERIC": "fast"}) == Options()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment_options({"GYRATOR_HOME_OF_MINE": "x", "GYRATOR_CACHE_DIR": "y"})


def test_options_of_torchinductor_have_the_counterparts_that_the_manual_lists() -> None:
    manual = (Path(__file__).parents[3] / "docs/from-torchinductor.md").read_text()
    rows = [line.split(" | ") for line in manual.splitlines() if line.startswith("| `")]
    for name, ours in TORCHINDUCTOR.items():
        (right,) = (row[1] for row in rows if f"`{name}`" in row[0])
        word = re.findall(r"`([\w.()-]+)", ours)[0]
        assert word in right or word.partition("(")[0] == "Session", name
    assert not TORCHINDUCTOR.keys() & list_options().keys()
