"""One HTML file that shows what was compiled: graphs, kernels, memory, and where time goes."""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

import torch
from attrs import field, frozen
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from gyrator.reports.lexer import GyLexer
from gyrator.reports.measured import Limits, OpTime
from gyrator.reports.records import GraphRecord, KernelRecord


@frozen
class Bar:
    """One bar of a chart."""

    label: str
    value: str
    percent: float
    """Of the widest bar."""
    note: str = ""


@frozen
class NodeLine:
    """One line of the ATen graph, and the kernel or call that carries it out."""

    text: str
    where: str


@frozen
class Table:
    """A table of texts."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    links: tuple[str, ...] = ()
    """Anchors that the first cells lead to."""


@frozen
class Section:
    """One model or function."""

    title: str
    records: tuple[GraphRecord, ...]
    anchor: str = "top"
    facts: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    """Of one call; 0 where it was not measured."""
    calls: tuple[OpTime, ...] = ()
    """ATen's ops in one call."""
    notes: tuple[str, ...] = ()
    """Graph breaks and recompiles."""


@frozen
class Page:
    """What a report shows."""

    title: str
    intro: str
    sections: tuple[Section, ...]
    table: Table | None = None
    limits: Limits | None = field(default=None)

    def write(self, path: Path) -> Path:
        """Write the file; it needs nothing beside it."""
        text = (files("gyrator.reports") / "page.html.jinja").read_text("utf-8")
        environment = Environment(autoescape=True, undefined=StrictUndefined)
        html = environment.from_string(text).render(
            page=self,
            torch_version=torch.__version__,
            kernel_bars=lambda record, seconds: kernel_bars(record, seconds, self.limits),
            call_bars=call_bars,
            stage_bars=stage_bars,
            memory_bars=memory_bars,
            graph_lines=graph_lines,
            amount=amount,
            code=code,
            styles=styles,
        )
        path.write_text(html, encoding="utf-8")
        return path


def kernel_bars(record: GraphRecord, seconds: float, limits: Limits | None) -> list[Bar]:
    """Return the time of each kernel in one call of its graph, the longest first: its share of the
    whole, its rates, and what they are of the machine's."""
    found = []
    for k, calls, total in times_of(record):
        one = total / 1e9 / calls
        found.append((k.name, one, _rates(k, one, seconds, limits)))
    found.sort(key=lambda item: -item[1])
    return _bars([(n, t, duration(t), note) for n, t, note in found[:_MOST]])


def times_of(record: GraphRecord) -> list[tuple[KernelRecord, int, int]]:
    """Return each kernel that ran with its calls and all their nanoseconds."""
    timings = record.timings() if record.timings is not None else {}
    return [(k, *timings[k.name]) for k in record.kernels if timings.get(k.name, (0, 0))[0]]


def call_bars(calls: Sequence[OpTime], seconds: float) -> list[Bar]:
    """Return the time of ATen's ops in one call of a function, the longest first."""
    rows = sorted(calls, key=lambda c: -c.seconds)[:_MOST]
    return _bars([(c.name, c.seconds, duration(c.seconds), _share(c, seconds)) for c in rows])


def _share(call: OpTime, seconds: float) -> str:
    times = f"{call.calls} calls"
    return f"{times}, {100 * call.seconds / seconds:.0f} % of the whole" if seconds else times


def stage_bars(record: GraphRecord) -> list[Bar]:
    """Return the seconds each stage of the compiler took, in order."""
    return _bars([(name, spent, duration(spent), "") for name, spent in record.seconds])


def memory_bars(record: GraphRecord) -> list[Bar]:
    """Return the bytes held at each step where they change, and by whom at the peak."""
    peak = record.peak_bytes
    rows, told = [], False
    for step, held, owners in record.memory():
        note = ""
        if held == peak and not told:
            told = True
            largest = sorted(owners, key=lambda s: -s.bytes)[:3]
            note = "peak: " + ", ".join(
                f"{s.owners[-1]} ({amount(s.bytes, 'B')}) of {', '.join(s.nodes[:2])}"
                for s in largest
            )
        rows.append((f"step {step}", float(held), amount(held, "B"), note))
    return _bars(rows[:_MOST] if told else rows)


def graph_lines(record: GraphRecord) -> list[NodeLine]:
    """Return the ATen graph's lines, each with the kernel or call that carries it out."""
    where = {node: k.name for k in record.kernels for node in k.nodes}
    where |= {e.node: e.target for e in record.externs}
    lines = []
    for text in record.fx_text().splitlines():
        name = text.strip().partition(":")[0].partition(" =")[0]
        lines.append(NodeLine(text, where.get(name, "")))
    return lines


_MOST = 40


def _rates(k: KernelRecord, seconds: float, whole: float, limits: Limits | None) -> str:
    said = [f"{100 * seconds / whole:.0f} % of the whole"] if whole else []
    pairs = (
        (k.bytes_moved, "B/s", 0 if limits is None else limits.bytes),
        (k.flops, "FLOP/s", 0 if limits is None else limits.flops),
    )
    for count, unit, limit in pairs:
        if count and seconds:
            rate = count / seconds
            of = f" ({100 * rate / limit:.0f} %)" if limit else ""
            said.append(amount(rate, unit) + of)
    return ", ".join(said)


def _bars(values: Iterable[tuple[str, float, str, str]]) -> list[Bar]:
    rows = list(values)
    widest = max((value for _, value, _, _ in rows), default=0.0) or 1.0
    return [Bar(label, said, 100 * value / widest, note) for label, value, said, note in rows]


def duration(seconds: float) -> str:
    """Return a time with the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds * 1e6:.1f} µs"


def amount(value: float, unit: str) -> str:
    """Return a number with a decimal prefix."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.1f} {prefix}{unit}"
    return f"{value:.0f} {unit}"


# Code -------------------------------------------------------------------------------------------

_LEXERS = {"python": "python", "triton": "python", "fx": "python", "metal": "c++", "halide": "c++"}


def code(text: str, language: str) -> Markup:
    """Return a program's text in colours."""
    given = language.lower()
    lexer = GyLexer() if given == "gy" else get_lexer_by_name(_LEXERS.get(given, "c++"))
    return Markup(highlight(text, lexer, HtmlFormatter(cssclass="code")))


def styles() -> Markup:
    """Return the colours of code, by day and by night."""
    day = HtmlFormatter(style="default").get_style_defs(".code")
    night = HtmlFormatter(style="github-dark").get_style_defs(".code")
    return Markup(f"{day}\n@media (prefers-color-scheme: dark) {{\n{night}\n}}")
