"""`gyrator.explain`: compile a function, run it once, and say what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, frozen

from gyrator.options import make_options
from gyrator.reports.records import GraphRecord
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
    **kwargs: Any,
) -> Explanation:
    """Compile `fn` in a session of its own, run it once on the arguments, and describe the result.

    For a training step, pass a function that calls `backward`.
    """
    records: list[GraphRecord] = []
    chosen = evolve(make_options(options=options), timed=True)
    with Session(options=chosen, observer=records.append) as session:
        compiled = torch.compile(fn, backend=session.backend, dynamic=dynamic)
        result = compiled(*args, **kwargs)
    return Explanation(tuple(records), result)
