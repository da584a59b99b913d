"""A report as one HTML file: graphs, kernels, memory, and times."""

import zlib
from base64 import b64encode
from collections.abc import Iterable
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import torch
from attrs import field
from jinja2 import Environment, StrictUndefined

from gyrator.reports.colours import coloured
from gyrator.reports.levels import Attribution, Block, Pane, panes
from gyrator.reports.measurements import Limits, Span, Timeline
from gyrator.reports.records import GraphRecord, KernelRecord, StorageRecord
from gyrator_ir.define import frozen
from gyrator_ir.kernel.nodes import Schedule

_MAX_ROWS = 40
"""Maximum number of rows in a chart of times."""
_TITLES = {
    "lines": "Your lines", "fx": "FX graph", "loop": "Loop IR", "kernel": "Kernel IR",
    "tile": "Tile IR", "host": "Host program", "c++": "C++", "triton": "Triton",
}  # fmt: skip


@frozen
class Table:
    """A table of strings."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    links: tuple[str, ...] = ()
    """Anchors that the first cells link to."""


@frozen
class Section:
    """The section of one model or function."""

    title: str
    records: tuple[GraphRecord, ...]
    anchor: str = "top"
    facts: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    """The duration of one call; 0 if it was not measured."""
    timeline: Timeline | None = None
    notes: tuple[str, ...] = ()
    """Graph breaks, recompiles, and graphs that run in eager mode."""


@frozen
class Page:
    """The content of a report."""

    title: str
    intro: str
    sections: tuple[Section, ...]
    table: Table | None = None
    limits: Limits | None = field(default=None)

    def write(self, path: Path) -> Path:
        """Write the self-contained file."""
        parts = files("gyrator.reports")
        environment = Environment(
            autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        html = environment.from_string((parts / "page.html.jinja").read_text("utf-8")).render(
            page=self,
            views=[
                (section, [GraphView(f"{n}-{k}", r) for k, r in enumerate(section.records)])
                for n, section in enumerate(self.sections)
            ],
            torch_version=torch.__version__,
            style=(parts / "page.css").read_text("utf-8"),
            script=(parts / "page.js").read_text("utf-8"),
            shares=lambda section: share_bars(section, self.limits),
            span_bars=span_bars,
            amount=amount,
            duration=duration,
            coloured=coloured,
            packed=packed,
        )
        path.write_text(html, encoding="utf-8")
        return path


def packed(html: str) -> str:
    """Return text in the form that the script reads: compressed by zlib, in base64."""
    return b64encode(zlib.compress(html.encode(), 9)).decode()


# Times ------------------------------------------------------------------------------------------


@frozen
class Share:
    """The share of one kernel or op in a call."""

    name: str
    seconds: float
    calls: int = 0
    graph: int | None = None
    kernel: bool = False
    lane: str = ""
    """The device that ran it; empty for the CPU."""


@frozen
class Bar:
    """A bar of a chart."""

    label: str
    value: str
    percent: float
    """Its length in percent of the chart's width."""
    note: str = ""
    offset: float = 0.0
    """Its start, in the same unit."""
    graph: int | None = None
    kernel: str = ""
    """The kernel that it represents."""


def shares(section: Section) -> tuple[float, tuple[Share, ...]]:
    """Return the seconds of one call, and the shares of its CPU time, which are those without a
    lane and add up to the whole. The shares of devices are additional.

    Without a timeline only kernels are included.
    """
    if section.timeline is None:
        parts = [
            Share(k.name, k.launches * total / 1e9 / calls, k.launches, n, kernel=True)
            for n, record in enumerate(section.records)
            for k, calls, total in times_of(record)
        ]
        rest = section.seconds - sum(s.seconds for s in parts)
        return section.seconds, (*parts, Share("everything else", rest))
    spans: dict[tuple[str, int | None, bool, str], list[float]] = {}
    for s in section.timeline.spans:
        spans.setdefault((s.name, s.graph, s.kernel, s.lane), []).append(s.seconds)
    parts = [Share(k[0], sum(spent), len(spent), *k[1:]) for k, spent in spans.items()]
    return section.timeline.seconds, (*parts, Share("everything else", section.timeline.rest))


def times_of(record: GraphRecord) -> list[tuple[KernelRecord, int, int]]:
    """Return each kernel that ran, with its calls and their total nanoseconds."""
    timings = record.timings() if record.timings is not None else {}
    return [(k, *timings[k.name]) for k in record.kernels if timings.get(k.name, (0, 0))[0]]


def share_bars(section: Section, limits: Limits | None) -> list[Bar]:
    """Return a bar for each of the largest shares of a call, longest first, and one for the
    rest."""
    total, parts = shares(section)
    if not total:
        return []
    *named, rest = parts
    named.sort(key=lambda s: -s.seconds)
    largest, others = named[:_MAX_ROWS], named[_MAX_ROWS:]
    spent = sum(s.seconds for s in others if not s.lane)
    ends = [Share(f"{len(others)} others", spent)] if others else []
    widest = max(s.seconds for s in parts) or 1.0
    return [
        Bar(
            f"{s.name} on {s.lane}" if s.lane else s.name,
            duration(s.seconds),
            max(0.0, 100 * s.seconds / widest),
            ", ".join(_share_note(s, section, total, limits)),
            graph=s.graph,
            kernel=s.name if s.kernel else "",
        )
        for s in (*largest, *ends, rest)
    ]


def _share_note(s: Share, section: Section, call: float, limits: Limits | None) -> Iterable[str]:
    yield f"{100 * s.seconds / call:.1f} %"
    if s.calls > 1:
        yield f"{s.calls} times"
    if s.graph is None or s.seconds <= 0:
        return
    record = section.records[s.graph]
    costs = [c for c in record.cost() if (c.name, c.kernel) == (s.name, s.kernel)]
    launches = sum(c.launches for c in costs)
    launch = s.seconds / s.calls if s.lane or not s.kernel else _unprofiled(record, s)
    for total, unit, limit in (
        (sum(c.launches * c.bytes for c in costs), "B/s", limits and limits.bytes),
        (sum(c.launches * c.flops for c in costs), "FLOP/s", limits and limits.flops),
    ):
        if total:
            rate = total / launches / launch
            yield amount(rate, unit) + (f" ({100 * rate / limit:.0f} %)" if limit else "")


def _unprofiled(record: GraphRecord, share: Share) -> float:
    """Return the seconds of one launch of a kernel without a profiler."""
    for k, calls, total in times_of(record):
        if k.name == share.name and total:
            return total / 1e9 / calls
    return share.seconds / share.calls


def span_bars(line: Timeline) -> dict[str, list[tuple[Span, Bar]]]:
    """Return the bars of a timeline by lane, the CPU's first."""
    lanes: dict[str, list[tuple[Span, Bar]]] = {"": []}
    for s in line.spans:
        at, long = 100 * s.start / line.seconds, 100 * s.seconds / line.seconds
        bar = Bar(s.name, duration(s.seconds), long, offset=at, graph=s.graph)
        lanes.setdefault(s.lane, []).append((s, bar))
    return lanes


# One graph --------------------------------------------------------------------------------------


@frozen(eq=False, slots=False)
class GraphView:
    """A graph as shown on the page."""

    id: str
    record: GraphRecord

    @cached_property
    def attribution(self) -> Attribution:
        """The calls that each kernel computes."""
        return Attribution.of(self.record)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The page's numbers of the calls of the ATen graph."""
        nodes = (n for pane in self._panes for b in pane.blocks for n in sorted(b.nodes))
        return {name: k for k, name in enumerate(dict.fromkeys(nodes))}

    @cached_property
    def _panes(self) -> tuple[Pane, ...]:
        return panes(self.record, self.attribution)

    def panes(self) -> list[tuple[str, str, list[tuple[str, str]]]]:
        """Return the title and language of each level, and its texts with the numbers of their
        calls; adjacent blocks with the same calls are merged."""
        panes = []
        for pane in self._panes:
            blocks: list[Block] = []
            for b in pane.blocks:
                if blocks and blocks[-1].nodes == b.nodes:
                    blocks[-1] = Block(blocks[-1].text + b.text, b.nodes)
                else:
                    blocks.append(b)
            texts = [(b.text.removesuffix("\n"), self.linked(b.nodes)) for b in blocks]
            panes.append((_TITLES.get(pane.name, pane.name), pane.language, texts))
        return panes

    def linked(self, nodes: Iterable[str]) -> str:
        """Return the numbers of calls in the form that the script reads."""
        numbers = sorted(self.numbers[n] for n in nodes if n in self.numbers)
        return " ".join(map(str, numbers))

    def kernel(self, name: str) -> str:
        """Return the numbers of the calls that a kernel of the host program or of the schedule
        computes."""
        name = self.attribution.launched.get(name, name)
        own = next((k.nodes for k in self.record.kernels if k.name == name), ())
        return self.linked({*own, *self.attribution.kernels.get(name, ())})

    def sources(self, kernel: KernelRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the modules and the user's lines that a kernel computes, over all its launches."""
        schedule: Schedule | None = self.record.levels.get("kernel")
        nodes = self.attribution.kernels.get(kernel.name, frozenset())
        if schedule is None or not nodes:
            return kernel.modules, kernel.sources
        parts = (schedule, *schedule.subschedules)
        rows = [o for part in parts for o in part.origins if o.node in nodes]
        lines = dict.fromkeys(f"{o.location}: {o.code}" for o in rows if o.location)
        return tuple(dict.fromkeys(o.module for o in rows if o.module)), tuple(lines)

    def span(self, span: Span) -> str:
        """Return the numbers of the calls that a span of the timeline computes."""
        return self.linked(self.attribution.nodes.get(span.node, ())) or self.kernel(span.name)

    def stages(self) -> list[Bar]:
        """Return the bars of the compiler's stages in order."""
        total = sum(spent for _, spent in self.record.seconds) or 1.0
        bars, at = [], 0.0
        for name, spent in self.record.seconds:
            bars.append(Bar(name, duration(spent), 100 * spent / total, offset=100 * at / total))
            at += spent
        return bars

    def memory(self) -> list[tuple[float, float, float, str]]:
        """Return left, width and height of the bars of memory over time, in percent, and their
        labels."""
        steps = self.record.memory()
        if not steps or not self.record.peak_bytes:
            return []
        end = steps[-1].step
        bars = []
        for step, after in pairwise(steps):
            label = f"step {step.step}: {amount(step.bytes, 'B')} in {len(step.storages)} buffers"
            left, width = 100 * step.step / end, 100 * (after.step - step.step) / end
            bars.append((left, width, 100 * step.bytes / self.record.peak_bytes, label))
        return bars

    def owners(self) -> list[StorageRecord]:
        """Return the largest storages at the peak."""
        return sorted(self.record.peak.storages, key=lambda s: -s.bytes)[:10]


# Numbers ----------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Format a time with a suitable unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f}{_SPACE}{unit}"
    return f"{seconds * 1e6:.1f}{_SPACE}µs"


def amount(value: float, unit: str) -> str:
    """Format a number with a decimal prefix."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.1f}{_SPACE}{prefix}{unit}"
    return f"{value:.0f}{_SPACE}{unit}"


_SPACE = "\N{NO-BREAK SPACE}"
