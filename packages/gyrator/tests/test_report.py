"""What `explain` tells in numbers, the report as one file, and the commands for both."""

import html
import itertools
import json
import re
import shutil
import subprocess
import sys
import zlib
from base64 import b64decode
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pygments
import pytest
import torch
from pygments.token import Error
from torch._C._autograd import DeviceType
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.flop_counter import FlopCounterMode

from gyrator import Explanation, explain
from gyrator.cli.main import main
from gyrator.reports.levels import Attribution, panes
from gyrator.reports.lexer import GyLexer
from gyrator.reports.measurements import Limits, Span, Timeline, read_events
from gyrator.reports.page import GraphView, Section, share_bars, shares, times_of
from gyrator.reports.records import ExternRecord, GraphRecord, StorageRecord
from gyrator_ir.loop.print import show as show_loop

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


class Block(torch.nn.Module):
    """One of several that are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.fc = torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.fc(self.norm(x)))


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    torch._dynamo.reset()
    return explain(two, torch.randn(64, 64), runs=3, options={"cache": False})


@pytest.fixture(scope="module")
def trained() -> Explanation:
    """Return what became of a training step with a graph break."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = torch.nn.Sequential(*(Block() for _ in range(3)))

    def step(x: torch.Tensor) -> None:
        torch._dynamo.graph_break()
        model(x).log_softmax(-1).sum().backward()

    return explain(step, torch.randn(16, 32), runs=3)


def _results(host: str) -> list[str]:
    return [line for line in host.splitlines() if line.strip().startswith("return")][-1:]


def test_costs_and_memory_are_data(explanation: Explanation) -> None:
    (graph,) = explanation.graphs
    kernels = [c for c in explanation.cost() if c.kernel]
    assert [c.name for c in kernels] == [k.name for k in graph.kernels]
    # What is read once and written once is no less than the product and the result.
    assert sum(c.bytes for c in kernels) >= 4 * 64 * 64 + 4 * 64
    assert sum(c.flops for c in kernels) >= 2 * 64 * 64  # a sum and a maximum of all elements
    (product,) = [c for c in explanation.cost() if c.name == "aten.mm.out"]
    assert (product.bytes, product.flops) == (2 * 4 * 64 * 64, 2 * 64**3)  # x is read as both
    assert sum(c.launches for c in kernels) == graph.launches
    owners = {name for s in graph.storages for name in s.owners}
    assert owners >= set(re.findall(r"buf\d+", " ".join(_results(graph.host_text))))
    assert 4 * 64 * 64 <= graph.peak_bytes <= 3 * 4 * 64 * 64
    json.dumps(explanation.to_dict())


def test_the_peak_is_what_lives_at_once() -> None:
    storages = (
        StorageRecord(100, "cpu", 0, 2, ("a",)),
        StorageRecord(50, "cpu", 1, 1, ("b", "c")),
        StorageRecord(60, "cpu", 2, 3, ("d",)),
    )
    graph = GraphRecord("main", "inference", 1, storages=storages)
    assert [(m.step, m.bytes) for m in graph.memory()] == [
        (0, 100), (1, 150), (2, 160), (3, 60), (4, 0),
    ]  # fmt: skip
    assert graph.peak_bytes == 160 and graph.peak.step == 2
    assert graph.peak.storages == (storages[0], storages[2])


def test_flops_of_calls_are_those_that_pytorch_counts() -> None:
    a, b = torch.randn(3, 8, 50), torch.randn(3, 50, 20)
    image, weight = torch.randn(2, 4, 9, 9), torch.randn(6, 2, 3, 3)
    turned = torch.randn(4, 3, 3, 3)

    def products() -> torch.Tensor:
        left = torch.baddbmm(torch.ones(20), a, b).sum() + (a[0] @ b[0]).sum()
        conv = torch.conv2d(image, weight, stride=2, groups=2).sum()
        return left + conv + torch.conv_transpose2d(image, turned, stride=2).sum()

    with FlopCounterMode(display=False) as counter:
        products()
    torch._dynamo.reset()
    explanation = explain(products, options={"cache": False})
    calls = [c for c in explanation.cost() if not c.kernel]
    assert sum(c.launches * c.flops for c in calls) == counter.get_total_flops()


def test_times_leave_out_the_calls_before(explanation: Explanation) -> None:
    (graph,) = explanation.graphs
    assert len(explanation.seconds) == 3
    assert {calls for _, calls, _ in times_of(graph)} == {3}


def test_totals_add_up(explanation: Explanation, trained: Explanation) -> None:
    for explained in (explanation, trained):
        line = explained.timeline
        assert line is not None and line.rest >= 0
        for one, after in itertools.pairwise(line.spans):
            assert one.end <= after.start + 1e-9
        section = Section("f", explained.graphs, seconds=1.0, timeline=line)
        whole, parts = shares(section)
        assert whole == line.seconds
        assert sum(s.seconds for s in parts) == pytest.approx(whole)
        ran = Counter({(s.graph, s.name): s.calls for s in parts if s.graph is not None})
        message: Counter[tuple[int | None, str]] = Counter()
        for n, graph in enumerate(explained.graphs):
            for c in graph.cost():
                message[n, c.name] += c.launches
        assert ran == message
        # Without a profiler, kernels and the rest.
        whole, parts = shares(Section("f", explained.graphs, seconds=2.0))
        assert whole == 2 and sum(s.seconds for s in parts) == pytest.approx(2)


def test_a_timeline_is_in_order(trained: Explanation) -> None:
    assert trained.timeline is not None
    assert [g.phase for g in trained.graphs] == ["forward", "backward"]
    graphs = [s.graph for s in trained.timeline.spans if s.graph is not None]
    assert graphs == sorted(graphs) and set(graphs) == {0, 1}
    for n, record in enumerate(trained.graphs):
        names = [node.name for node in record.levels["kernel"].nodes]
        ran = [names.index(s.node) for s in trained.timeline.spans if s.graph == n]
        assert ran == sorted(ran)


def test_rates_are_of_one_launch() -> None:
    calls = tuple(ExternRecord("aten.mm.out", "mm", "library", flops=n) for n in (10_000, 30_000))
    graph = GraphRecord("main", "inference", 2, externs=calls)
    spans = tuple(
        Span("aten.mm.out", k * 1e-3, 1e-6, 0) for k in range(6)
    )  # three rounds of a loop
    section = Section("f", (graph,), timeline=Timeline(1e-2, spans))
    bars = share_bars(section, Limits("cpu", 1e9, 1e11))
    assert bars[0].note.replace("\N{NO-BREAK SPACE}", " ") == "0.1 %, 6 times, 20.0 GFLOP/s (20 %)"
    assert bars[-1].label == "everything else" and bars[-1].percent == 100


def test_a_timeline_looks_into_loops() -> None:
    def squares(x: torch.Tensor) -> torch.Tensor:
        def more(i: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return i < 3

        def square(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, (y @ y).tanh()

        return while_loop(more, square, (torch.tensor(0), x))[1]

    torch._dynamo.reset()
    line = explain(squares, torch.randn(8, 8), runs=1).timeline
    assert line is not None
    assert [s.name for s in line.spans].count("aten.mm.out") == 3


def event(name: str, start: float, end: float, device: DeviceType = DeviceType.CPU) -> Any:
    span = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
    return SimpleNamespace(name=name, time_range=span, device_type=device, device_index=0)


def test_a_device_has_its_own_lane(explanation: Explanation) -> None:
    (graph,) = explanation.graphs
    ours = graph.kernels[0].name
    events = [
        event("aten::mm", 10, 40),
        event("aten::resolve_conj", 12, 14),  # a part of the product
        event("cudaLaunchKernel", 20, 30),
        event("ampere_sgemm", 30, 130, DeviceType.CUDA),
        event(ours, 50, 60),
        event(f"gy_k_{ours}", 130, 180, DeviceType.CUDA),
    ]
    line = read_events(event("call", 0, 200), events, explanation.graphs)
    host, device = ([s for s in line.spans if s.lane == lane] for lane in ("", "cuda:0"))
    assert [s.name for s in host] == ["aten::mm", ours] and [s.kernel for s in host] == [
        False,
        True,
    ]
    assert [s.name for s in device] == ["ampere_sgemm", ours] and device[1].graph == 0
    assert line.rest == pytest.approx(160e-6)  # the host's
    whole, parts = shares(Section("f", explanation.graphs, timeline=line))
    assert sum(s.seconds for s in parts if not s.lane) == pytest.approx(whole)


def test_levels_name_what_they_compute(trained: Explanation) -> None:
    assert any("graph break" in why for why in trained.breaks)
    (forward, _) = trained.graphs
    actual = {p.name: p for p in panes(forward, Attribution.of(forward))}
    assert list(actual) == ["lines", "fx", "loop", "kernel", "tile", "host", "c++"]
    products = [e.node for e in forward.externs]
    assert len(products) == 3
    for node in products:
        for level in ("lines", "fx", "loop", "kernel", "host"):
            text = "".join(b.text for b in actual[level].blocks if node in b.nodes)
            expected = "self.fc(self.norm(x))" if level == "lines" else "aten.addmm"
            assert expected in text, (level, text)
    # A kernel that is launched for several blocks computes the calls of all of them.
    gelus = [n.name for n in forward.levels["fx"].graph.nodes if "gelu" in n.name]
    assert len(gelus) == 3
    for level in ("tile", "c++", "kernel", "host"):
        assert all(any(g in b.nodes for b in actual[level].blocks) for g in gelus), level
    view = GraphView("0-0", forward)
    for kernel in forward.kernels:
        modules, lines = view.sources(kernel)
        assert set(modules) >= set(kernel.modules) and set(lines) >= set(kernel.sources)
    modules = {m for k in forward.kernels for m in view.sources(k)[0]}
    assert modules == {*"012", "0.norm", "1.norm", "2.norm"}
    assert all("nn/functional.py" not in line for k in forward.kernels for line in k.sources)


def test_a_report_is_one_file(trained: Explanation, tmp_path: Path) -> None:
    text = trained.save(tmp_path / "x.html").read_text()
    assert "http" not in text and "<link" not in text and " src=" not in text
    for word in ("aten.addmm.out", "bytes moved", "peak memory", "graph break", "everything else"):
        assert word in text, word
    assert "prefers-color-scheme: dark" in text
    texts = map(zlib.decompress, map(b64decode, re.findall(r'id="levels-[\d-]+">([^<]+)<', text)))
    plain = html.unescape(re.sub(r"<[^>]*>", "", "".join(t.decode() for t in texts)))
    for graph in trained.graphs:
        for kernel in graph.kernels:
            assert plain.count(kernel.text.strip()) == 1  # and no more
        loops = show_loop(graph.levels["loop"]).splitlines()
        stored = [line for line in loops if line.startswith("    store")]
        assert stored and all(line in plain for line in stored)
    output = sum(
        len(b.text) for g in trained.graphs for p in panes(g, Attribution.of(g)) for b in p.blocks
    )
    assert len(text) < output / 2 + 40_000


def test_a_report_of_what_the_cache_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path / "cache"))
    for _ in range(2):
        torch._dynamo.reset()
        explanation = explain(two, torch.randn(64, 64))
    assert explanation.graphs[0].cached
    assert "Loaded from the cache" in explanation.save(tmp_path / "x.html").read_text()


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: Debian's chromium")
def test_what_belongs_together_is_marked(trained: Explanation, tmp_path: Path) -> None:
    page = trained.save(tmp_path / "x.html")
    (forward, _) = trained.graphs
    number = GraphView("0-0", forward).numbers[forward.externs[1].node]
    common = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000")
    command = (BROWSER, *common, "--dump-dom")
    where = f"{page.as_uri()}#levels-0-0:{number}"
    done = subprocess.run([*command, where], capture_output=True, text=True, check=True)
    marked = re.findall(r'<div data-n="[\d ]*" class="on">(.*?)</div>', done.stdout, re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", "", "\n".join(marked)))
    assert "self.fc(self.norm(x))" in text and "1.fc" in text and "2.fc" not in text
    assert text.count("aten.addmm.default") == 4  # FX, Loop, Kernel, host
    assert 'aria-pressed="true">Kernel IR<' in done.stdout


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "subject.py").write_text(SUBJECT)
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    assert main(["explain", "subject.py:make", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert len(output["graphs"]) == 1 and output["graphs"][0]["kernels"] > 0
    assert any("graph break" in why for why in output["breaks"])
    torch._dynamo.reset()
    assert main(["report", "subject.py:make", "--runs", "2", "-o", "r.html"]) == 0
    assert "graph break" in (tmp_path / "r.html").read_text()
    torch._dynamo.reset()
    assert main(["report", "subject.py:make", "--runs", "0", "-o", "r.html"]) == 0
    assert "One call under the profiler" not in (tmp_path / "r.html").read_text()
    for wrong in ("subject.py", "subject.py:none", "subject.py:nothing", "none.py:f", "nowhere:f"):
        assert main(["explain", wrong]) == 2
        assert "GY-OPT-005" in capsys.readouterr().err
    assert main(["explain", "subject.py:mke"]) == 2
    assert "did you mean make?" in capsys.readouterr().err


def test_a_subject_imports_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "layers_beside_it.py").write_text("def shift(x):\n    return x + 1\n")
    text = "import torch\nfrom layers_beside_it import shift\nmake = lambda: (shift, torch.ones(3))"
    (tmp_path / "neighbour.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    torch._dynamo.reset()
    assert main(["explain", str(tmp_path / "neighbour.py:make")]) == 0
    assert "inference" in capsys.readouterr().out


def test_every_text_of_a_trace_is_highlighted(tmp_path: Path) -> None:
    torch._dynamo.reset()
    explain(two, torch.randn(8, 8), options={"trace_dir": str(tmp_path), "cache": False})
    files = sorted(tmp_path.glob("*/*.gy"))
    assert {f.name.partition("_")[0] for f in files} >= {"fx.gy", "loop.gy", "kernel.gy", "host.gy"}
    for file in files:
        tokens = list(pygments.lex(file.read_text(), GyLexer()))
        assert Error not in {kind for kind, _ in tokens}
        assert "".join(text for _, text in tokens).strip() == file.read_text().strip()
