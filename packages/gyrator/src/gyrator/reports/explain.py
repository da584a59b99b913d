"""`gyrator.explain`: compile a function, run it once, and describe the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from attrs import asdict, evolve
from torch._dynamo.utils import get_compilation_metrics

from gyrator.options import make_options
from gyrator.reports.measurements import Timeline, elapsed, timeline
from gyrator.reports.records import Cost, GraphRecord
from gyrator.session import Session
from gyrator_ir.define import frozen
from gyrator_ir.passes import Step

if TYPE_CHECKING:
    from rich.console import RenderableType


@frozen
class Explanation:
    """The result of `explain`. Print it, or read the records."""

    graphs: tuple[GraphRecord, ...]
    result: Any
    """The return value of the function."""
    name: str = ""
    """The name of the function."""
    seconds: tuple[float, ...] = ()
    """The time of each call after the first."""
    timeline: Timeline | None = None
    """The timeline of the median call under PyTorch's profiler, if `runs` was set."""
    breaks: tuple[str, ...] = ()
    """The reasons for graph breaks and recompiles."""

    def cost(self) -> tuple[Cost, ...]:
        """Return the cost of the kernels and calls of all graphs in one run of each: see
        `GraphRecord.cost`."""
        return tuple(cost for g in self.graphs for cost in g.cost())

    def to_dict(self) -> dict[str, Any]:
        """Return the records as numbers and strings, for JSON."""
        return {
            "name": self.name,
            "seconds": self.seconds,
            "breaks": self.breaks,
            "graphs": [
                {"phase": g.phase, "nodes": g.nodes, "kernels": len(g.kernels),
                 "launches": g.launches, "extern_calls": [e.target for e in g.externs],
                 "peak_bytes": g.peak_bytes, "cached": g.cached, "fallback": g.fallback,
                 "seconds": dict(g.seconds)}
                for g in self.graphs
            ],
            "cost": [
                {"graph": n} | asdict(c) for n, g in enumerate(self.graphs) for c in g.cost()
            ],
            "memory": [
                {"graph": n} | asdict(s) for n, g in enumerate(self.graphs) for s in g.storages
            ],
            "timeline": None if self.timeline is None else asdict(self.timeline),
        }  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write a report as one self-contained HTML file; return its path."""
        from gyrator.reports.measurements import measure_limits
        from gyrator.reports.page import Page, Section, amount, duration

        call = median(self.seconds) if self.seconds else 0.0
        costs = self.cost()
        facts = [
            ("graphs", str(len(self.graphs))),
            ("kernels", f"{self.kernels}, launched {sum(g.launches for g in self.graphs)} times"),
            ("ATen calls", str(self.extern_calls.total())),
            ("bytes moved", amount(sum(c.launches * c.bytes for c in costs), "B")),
            ("operations", amount(sum(c.launches * c.flops for c in costs), "FLOP")),
            ("peak memory beside the arguments",
             amount(max((g.peak_bytes for g in self.graphs), default=0), "B")),
        ]  # fmt: skip
        intro = ""
        if call:
            facts.insert(0, ("one call", f"{duration(call)}, the median of {len(self.seconds)}"))
            intro = (
                "Kernel rates are measured without a profiler and exclude the first call. Click on "
                "a line, a kernel or a bar to highlight the related ones. "
            )
        eager = (f"runs eagerly: {g.fallback}" for g in self.graphs if g.fallback)
        section = Section(
            self.name or "function", self.graphs, facts=tuple(facts), seconds=call,
            timeline=self.timeline, notes=(*self.breaks, *eager),
        )  # fmt: skip
        limits = measure_limits(self.graphs)
        page = Page(f"Gyrator: {section.title}", intro, (section,), limits=limits)
        return page.write(Path(path))

    @property
    def extern_calls(self) -> Counter[str]:
        """How often the host programs call each ATen op."""
        return Counter(e.target for g in self.graphs for e in g.externs)

    @property
    def unlowered(self) -> Counter[tuple[str, str]]:
        """ATen calls other than library calls, as (op, reason)."""
        return Counter(
            (e.target, e.reason) for g in self.graphs for e in g.externs if e.reason != "library"
        )

    @property
    def passes(self) -> tuple[Step, ...]:
        """The steps of all passes; none for a graph from the cache. With the option
        `pass_texts`, they include the text before and after."""
        return tuple(step for g in self.graphs for step in g.passes)

    @property
    def kernels(self) -> int:
        """Number of generated kernels."""
        return sum(len(g.kernels) for g in self.graphs)

    @property
    def verified(self) -> int:
        """Number of generated kernels that match their IR, with the option `verify`."""
        return sum(k.agrees for g in self.graphs for k in g.kernels)

    @property
    def unverified(self) -> dict[str, str]:
        """Why kernels were not compared with their IR, by name, with the option `verify`."""
        kernels = (k for g in self.graphs for k in g.kernels)
        return {k.name: k.verified for k in kernels if k.verified and not k.agrees}

    def __str__(self) -> str:
        from rich.console import Console  # takes 0.04 s, which only printing needs

        console = Console(width=100, color_system=None)
        with console.capture() as captured:
            console.print(self.__rich__())
        return captured.get()

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        from gyrator.engine.passes import times

        summary = Table("graph", "ATen calls", "kernels", "launches", "extern calls", "from cache")
        for g in self.graphs:
            cells = (g.nodes, len(g.kernels), g.launches, len(g.externs))
            summary.add_row(g.phase, *map(str, cells), _origin(g))
        parts: list[RenderableType] = [summary]
        for g in self.graphs:
            if g.fallback:
                name = "a graph" if g.phase == "eager" else g.phase
                parts.append(Text(f"{name} runs eagerly:\n{g.fallback}"))
        if self.verified or self.unverified:
            parts.append(Text(f"{self.verified} of {self.kernels} kernels match their IR"))
            parts += (Text(f"{n} was not checked: {why}") for n, why in self.unverified.items())
        externs = Table("extern call", "count", "reason")
        rows = Counter((e.target, e.reason) for g in self.graphs for e in g.externs)
        for (target, reason), count in rows.most_common():
            externs.add_row(target, str(count), reason)
        if rows:
            parts.append(externs)
        graphs = Table("graph", "kernels and calls", "device graph")
        for g in self.graphs:
            for p in g.partitions:
                captured = p.device and f"captured on {p.device}"
                graphs.add_row(g.phase, _shortened(p.nodes), captured or f"none: {p.reason}")
        if graphs.rows:
            parts.append(graphs)
        if self.passes:
            parts.append(times(self.passes))
        return Group(*parts)


def _shortened(names: tuple[str, ...]) -> str:
    """Return the first few names, and how many there are."""
    few = ", ".join(names[:_FEW])
    return few if len(names) <= _FEW else f"{few}, ... ({len(names)})"


_FEW = 3


def _origin(graph: GraphRecord) -> str:
    """Return whether a graph came from the cache, or else how it differs from stored ones."""
    if graph.fallback:
        return "eager"
    if graph.cached:
        return "yes"
    missed = graph.missed()
    if missed is None:
        return "no"
    return "no: a new graph" if "graph" in missed else f"no: other {', '.join(missed)}"


def explain(
    fn: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    runs: int = 0,
    **kwargs: Any,
) -> Explanation:
    """Compile `fn` in a separate session, run it once on the arguments, and describe the result.

    For a training step, pass a function that calls `backward`. With `runs`, the cache is not used,
    and `fn` is called that many times to time its kernels; then it is compiled again with the
    option `profile`, and called that many times under PyTorch's profiler.
    """
    chosen = evolve(make_options(options=options), build_in_background=False)
    if runs:
        chosen = evolve(chosen, cache=False)
    breaks_before = _breaks()
    records: list[GraphRecord] = []
    with Session(options=evolve(chosen, timed=True), observer=records.append) as session:
        compiled = torch.compile(fn, backend=session.backend, dynamic=dynamic)
        result = compiled(*args, **kwargs)
        if runs:
            records[:] = [r.from_now() for r in records]
        seconds = tuple(elapsed(lambda: compiled(*args, **kwargs)) for _ in range(runs))
    name = getattr(fn, "__name__", type(fn).__name__)
    breaks = tuple(_breaks() - breaks_before)
    explanation = Explanation(tuple(records), result, name, seconds, breaks=breaks)
    if not runs:
        return explanation
    ranged: list[GraphRecord] = []
    with Session(options=evolve(chosen, profile=True), observer=ranged.append) as session:
        compiled = torch.compile(fn, backend=session.backend, dynamic=dynamic)
        compiled(*args, **kwargs)
        return evolve(
            explanation, timeline=timeline(lambda: compiled(*args, **kwargs), ranged, runs)
        )


def _breaks() -> Counter[str]:
    """Count graph breaks and recompiles by reason."""
    counters = torch._dynamo.utils.counters["graph_break"]
    recompiles = (getattr(m, "recompile_reason", None) for m in get_compilation_metrics())
    breaks = Counter({f"graph break: {_first(why)}": count for why, count in counters.items()})
    return breaks + Counter(f"recompiled: {_first(why)}" for why in recompiles if why)


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]
