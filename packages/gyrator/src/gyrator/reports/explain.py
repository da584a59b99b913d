"""`gyrator.explain`: compile a function, run it once, and say what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from attrs import asdict, evolve, frozen
from torch._dynamo.utils import get_compilation_metrics

from gyrator.options import make_options
from gyrator.reports.measured import Timeline, elapsed, timeline
from gyrator.reports.records import Cost, GraphRecord
from gyrator.session import Session
from gyrator_ir.passes import Step

if TYPE_CHECKING:
    from rich.console import RenderableType


@frozen
class Explanation:
    """What `explain` found. Print it, or read the records."""

    graphs: tuple[GraphRecord, ...]
    result: Any
    """What the function returned."""
    name: str = ""
    """Of the function."""
    seconds: tuple[float, ...] = ()
    """Of each call after the first."""
    timeline: Timeline | None = None
    """What ran when in the median of calls under PyTorch's profiler, where calls were asked for."""
    breaks: tuple[str, ...] = ()
    """Why PyTorch left a graph, and why it compiled a function again."""

    def cost(self) -> tuple[Cost, ...]:
        """Return what the kernels and calls of all graphs take in one run of each: see
        `GraphRecord.cost`."""
        return tuple(cost for g in self.graphs for cost in g.cost())

    def to_dict(self) -> dict[str, Any]:
        """Return what was found as numbers and texts, for JSON."""
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
        """Write a report as one HTML file, which needs nothing beside it; return its path."""
        from gyrator.reports.measured import measure_limits
        from gyrator.reports.page import Page, Section, amount, duration

        whole = median(self.seconds) if self.seconds else 0.0
        costs = self.cost()
        facts = [
            ("graphs", str(len(self.graphs))),
            ("kernels", f"{self.kernels}, launched {sum(g.launches for g in self.graphs)} times"),
            ("calls of ATen", str(self.extern_calls.total())),
            ("bytes moved", amount(sum(c.launches * c.bytes for c in costs), "B")),
            ("operations", amount(sum(c.launches * c.flops for c in costs), "FLOP")),
            ("most memory beside the arguments",
             amount(max((g.peak_bytes for g in self.graphs), default=0), "B")),
        ]  # fmt: skip
        intro = ""
        if whole:
            facts.insert(0, ("one call", f"{duration(whole)}, the median of {len(self.seconds)}"))
            intro = (
                "Rates of kernels are of calls without a profiler; first calls are left out. Click "
                "on a line, a kernel or a bar to see what it came from and what became of it. "
            )
        section = Section(
            self.name or "function", self.graphs, facts=tuple(facts), seconds=whole,
            timeline=self.timeline, notes=self.breaks,
        )  # fmt: skip
        limits = measure_limits(self.graphs)
        page = Page(f"Gyrator: {section.title}", intro, (section,), limits=limits)
        return page.write(Path(path))

    @property
    def extern_calls(self) -> Counter[str]:
        """How often each ATen op is called by the host programs."""
        return Counter(e.target for g in self.graphs for e in g.externs)

    @property
    def unlowered(self) -> Counter[tuple[str, str]]:
        """ATen calls that are not library work, as (op, reason)."""
        return Counter(
            (e.target, e.reason) for g in self.graphs for e in g.externs if e.reason != "library"
        )

    @property
    def passes(self) -> tuple[Step, ...]:
        """What each pass did: none where a graph came from the cache. With the option `pass_texts`
        also the text before and after."""
        return tuple(step for g in self.graphs for step in g.passes)

    @property
    def kernels(self) -> int:
        """Number of generated kernels."""
        return sum(len(g.kernels) for g in self.graphs)

    @property
    def verified(self) -> int:
        """Number of generated kernels that agree with their IR: with the option `verify`."""
        return sum(k.agrees for g in self.graphs for k in g.kernels)

    @property
    def unverified(self) -> dict[str, str]:
        """Why kernels did not run beside their IR, by name: with the option `verify`."""
        kernels = (k for g in self.graphs for k in g.kernels)
        return {k.name: k.verified for k in kernels if k.verified and not k.agrees}

    def __str__(self) -> str:
        from rich.console import Console  # 0.04 s that only printing should pay

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
                parts.append(Text(f"{g.phase} runs eagerly:\n{g.fallback}"))
        if self.verified or self.unverified:
            said = f"{self.verified} of {self.kernels} kernels agree with their IR"
            parts.append(Text(said))
            parts += (Text(f"{name} was not run: {why}") for name, why in self.unverified.items())
        externs = Table("extern call", "count", "reason")
        rows = Counter((e.target, e.reason) for g in self.graphs for e in g.externs)
        for (target, reason), count in rows.most_common():
            externs.add_row(target, str(count), reason)
        if rows:
            parts.append(externs)
        graphs = Table("graph", "kernels and calls", "device graph")
        for g in self.graphs:
            for p in g.partitions:
                held = p.device and f"captured on {p.device}"
                graphs.add_row(g.phase, _shortened(p.nodes), held or f"none: {p.reason}")
        if graphs.rows:
            parts.append(graphs)
        if self.passes:
            parts.append(times(self.passes))
        return Group(*parts)


def _shortened(names: tuple[str, ...]) -> str:
    """Return a few names, and how many there are."""
    few = ", ".join(names[:_FEW])
    return few if len(names) <= _FEW else f"{few}, ... ({len(names)})"


_FEW = 3


def _origin(graph: GraphRecord) -> str:
    """Say whether a graph came from the cache, or else how it differs from what is there."""
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
    """Compile `fn` in a session of its own, run it once on the arguments, and describe the result.

    For a training step, pass a function that calls `backward`. With `runs` nothing comes from the
    cache, and `fn` is called so often again, which the times of kernels are of; then it is compiled
    with the option `profile`, and called so often under PyTorch's profiler.
    """
    chosen = evolve(make_options(options=options), build_in_background=False)
    if runs:
        chosen = evolve(chosen, cache=False)
    seen = _breaks()
    records: list[GraphRecord] = []
    with Session(options=evolve(chosen, timed=True), observer=records.append) as session:
        compiled = torch.compile(fn, backend=session.backend, dynamic=dynamic)
        result = compiled(*args, **kwargs)
        if runs:
            records[:] = [r.from_now() for r in records]
        seconds = tuple(elapsed(lambda: compiled(*args, **kwargs)) for _ in range(runs))
    name = getattr(fn, "__name__", type(fn).__name__)
    breaks = tuple(_breaks() - seen)
    found = Explanation(tuple(records), result, name, seconds, breaks=breaks)
    if not runs:
        return found
    ranged: list[GraphRecord] = []
    with Session(options=evolve(chosen, profile=True), observer=ranged.append) as session:
        compiled = torch.compile(fn, backend=session.backend, dynamic=dynamic)
        compiled(*args, **kwargs)
        return evolve(found, timeline=timeline(lambda: compiled(*args, **kwargs), ranged, runs))


def _breaks() -> Counter[str]:
    """Return how often PyTorch left a graph for each reason, and compiled a frame again."""
    left = torch._dynamo.utils.counters["graph_break"]
    again = (getattr(m, "recompile_reason", None) for m in get_compilation_metrics())
    found = Counter({f"graph break: {_first(why)}": count for why, count in left.items()})
    return found + Counter(f"recompiled: {_first(why)}" for why in again if why)


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]
