"""What `explain` tells in numbers, the report as one file, and the commands for both."""

import json
import re
from pathlib import Path

import pygments
import pytest
import torch
from pygments.token import Error

from gyrator import Explanation, explain
from gyrator.cli.main import main
from gyrator.reports.lexer import GyLexer
from gyrator.reports.page import kernel_bars, times_of
from gyrator.reports.records import GraphRecord, StorageRecord

SUBJECT = """
import torch

def scores(x):
    torch._dynamo.graph_break()
    return x.exp().sum(0) @ x.softmax(-1).T

def make():
    return scores, torch.randn(64, 64)

def nothing():
    return 3
"""


def two(x: torch.Tensor) -> torch.Tensor:
    """Hold a product and two rows at a time."""
    y = (x @ x).relu()
    return y.sum(0).flip(0) - y.amax(0).flip(0) + torch.linalg.det(x)


@pytest.fixture
def found() -> Explanation:
    torch._dynamo.reset()
    return explain(two, torch.randn(64, 64), runs=3, options={"cache": False})


def _results(host: str) -> list[str]:
    return [line for line in host.splitlines() if line.strip().startswith("return")][-1:]


def test_costs_and_memory_are_data(found: Explanation) -> None:
    (graph,) = found.graphs
    rows = found.cost()
    assert [r["kernel"] for r in rows] == [k.name for k in graph.kernels]
    # What is read once and written once is no less than the product and the result.
    assert sum(r["bytes"] for r in rows) >= 4 * 64 * 64 + 4 * 64
    assert sum(r["flops"] for r in rows) >= 2 * 64 * 64  # a sum and a maximum of all elements
    owners = {name for s in found.memory() for name in s["owners"]}
    assert owners >= set(re.findall(r"buf\d+", " ".join(_results(graph.host_text))))
    assert 4 * 64 * 64 <= graph.peak_bytes <= 3 * 4 * 64 * 64
    json.dumps(found.to_dict())


def test_the_peak_is_what_lives_at_once() -> None:
    storages = (
        StorageRecord(100, "cpu", 0, 2, ("a",)),
        StorageRecord(50, "cpu", 1, 1, ("b", "c")),
        StorageRecord(60, "cpu", 2, 3, ("d",)),
    )
    graph = GraphRecord("main", "inference", 1, storages=storages)
    assert [(step, held) for step, held, _ in graph.memory()] == [
        (0, 100), (1, 150), (2, 160), (3, 60), (4, 0),
    ]  # fmt: skip
    assert graph.peak_bytes == 160


def test_times_leave_out_the_calls_before(found: Explanation) -> None:
    (graph,) = found.graphs
    assert len(found.seconds) == 3
    assert {calls for _, calls, _ in times_of(graph)} == {3}
    assert len(kernel_bars(graph, max(found.seconds), None)) == len(graph.kernels)
    assert {c.name for c in found.calls} >= {"aten::mm"}


def test_a_report_is_one_file(found: Explanation, tmp_path: Path) -> None:
    text = found.save(tmp_path / "x.html").read_text()
    assert "http" not in text.replace("http-equiv", "") and "<script" not in text
    for word in ("aten.linalg_det", "bytes moved by kernels", "most memory", "aten::mm"):
        assert word in text or word.replace("linalg_det", "_linalg_det") in text, word
    assert "prefers-color-scheme: dark" in text and found.graphs[0].kernels[0].name in text


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "subject.py").write_text(SUBJECT)
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    assert main(["explain", "subject.py:make", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["graphs"]) == 1 and said["graphs"][0]["kernels"] > 0
    assert any("graph break" in why for why in said["breaks"])
    torch._dynamo.reset()
    assert main(["report", "subject.py:make", "--runs", "2", "-o", "r.html"]) == 0
    assert "graph break" in (tmp_path / "r.html").read_text()
    for wrong in ("subject.py", "subject.py:none", "subject.py:nothing", "none.py:f", "nowhere:f"):
        assert main(["explain", wrong]) == 2
        assert "GY-OPT-005" in capsys.readouterr().err


def test_every_text_of_a_trace_is_highlighted(tmp_path: Path) -> None:
    torch._dynamo.reset()
    explain(two, torch.randn(8, 8), options={"trace_dir": str(tmp_path), "cache": False})
    files = sorted(tmp_path.glob("*/*.gy"))
    assert {f.name.partition("_")[0] for f in files} >= {"fx.gy", "loop.gy", "kernel.gy", "host.gy"}
    for file in files:
        tokens = list(pygments.lex(file.read_text(), GyLexer()))
        assert Error not in {kind for kind, _ in tokens}
        assert "".join(text for _, text in tokens).strip() == file.read_text().strip()


@pytest.mark.parametrize("wrapper", ["python", "fx"])
def test_a_nan_is_told_with_the_users_line(wrapper: str) -> None:
    def logs(x: torch.Tensor) -> torch.Tensor:
        return torch.log(x - 2.0)

    torch._dynamo.reset()
    compiled = torch.compile(
        logs, backend="gyrator", options={"nan_asserts": True, "wrapper": wrapper}
    )
    assert compiled(torch.full((4,), 3.0)).tolist() == [0.0] * 4
    with pytest.raises(Exception, match=r"(?s)GY-RUNTIME-003.*torch\.log\(x - 2\.0\).*4 NaN"):
        compiled(torch.ones(4))
