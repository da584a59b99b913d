"""One HTML file that shows what was compiled: tables, graphs, kernels, and where time goes."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import torch
from attrs import frozen
from jinja2 import Environment, StrictUndefined

from gyrator.demo.measure import Row
from gyrator.reports.records import GraphRecord, KernelRecord


@frozen
class Bar:
    """One bar of a chart."""

    label: str
    value: float
    unit: str
    percent: float
    """Of the widest bar."""
    note: str = ""


@frozen
class NodeLine:
    """One line of the ATen graph, and the kernel or call that carries it out."""

    text: str
    where: str


def write_report(rows: Sequence[Row], path: Path) -> Path:
    """Write the report of measured workloads and return its path."""
    template = (files("gyrator.demo") / "report.html.jinja").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    html = environment.from_string(template).render(
        rows=rows,
        title="Gyrator: what became of the models",
        torch_version=torch.__version__,
        kernel_bars=kernel_bars,
        stage_bars=stage_bars,
        graph_lines=graph_lines,
        anchor=lambda row: f"{row.model}-{row.step}-{row.dtype}".replace(".", "-"),
    )
    path.write_text(html, encoding="utf-8")
    return path


def kernel_bars(record: GraphRecord, most: int = 25) -> list[Bar]:
    """Return the time a call of each kernel takes, the longest first."""
    timings = record.timings() if record.timings is not None else {}
    times = {n: total / calls / 1e3 for n, (calls, total) in timings.items() if calls}
    by_name = {k.name: k for k in record.kernels}
    chosen = sorted(times.items(), key=lambda item: -item[1])[:most]
    return _bars([(n, t, _bandwidth(by_name[n], t)) for n, t in chosen if n in by_name], "µs")


def stage_bars(record: GraphRecord) -> list[Bar]:
    """Return the seconds each stage of the compiler took, in order."""
    return _bars([(name, 1e3 * seconds, "") for name, seconds in record.seconds], "ms")


def graph_lines(record: GraphRecord) -> list[NodeLine]:
    """Return the ATen graph's lines, each with the kernel or call that carries it out."""
    where = {node: k.name for k in record.kernels for node in k.nodes}
    where |= {e.node: e.target for e in record.externs}
    lines = []
    for text in record.fx_text().splitlines():
        name = text.strip().partition(":")[0].partition(" =")[0]
        lines.append(NodeLine(text, where.get(name, "")))
    return lines


def _bandwidth(kernel: KernelRecord, microseconds: float) -> str:
    return f"{kernel.bytes_moved / microseconds / 1e3:.1f} GB/s" if kernel.bytes_moved else ""


def _bars(values: list[tuple[str, float, str]], unit: str) -> list[Bar]:
    widest = max((value for _, value, _ in values), default=0.0) or 1.0
    return [Bar(label, v, unit, 100 * v / widest, note) for label, v, note in values]
