"""The passes of all levels: which there are, and what they did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from gyrator_codegen.passes import every_pass
from gyrator_ir.passes import Pipeline, Step
from gyrator_lowering.fx_passes import fx_pipeline, joint_pipeline
from gyrator_lowering.options import LoweringOptions
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.passes import kernel_pipeline, loop_pipeline

if TYPE_CHECKING:
    from rich.table import Table


def pipelines() -> tuple[Pipeline[Any], ...]:
    """Return the pipeline of each level, in the order in which they run, by default options: what
    a user's edits may name."""
    options = SchedulerOptions()
    return (
        joint_pipeline(LoweringOptions()),
        fx_pipeline(),
        loop_pipeline(options, {}),
        kernel_pipeline(options),
        every_pass(),
    )


@frozen
class PassRow:
    """A pass as it is listed."""

    level: str
    name: str
    about: str
    """The first line of its description."""

    def __str__(self) -> str:
        return f"{self.level:7} {self.name:24} {self.about}"


def listed() -> list[PassRow]:
    """Return the passes of all levels, in order."""
    return [
        PassRow(p.level.name, name, (type(one).__doc__ or "").strip().partition("\n")[0])
        for p in pipelines()
        for name, one in p.table.items()
    ]


def times(steps: Iterable[Step]) -> Table:
    """Return how often each pass ran, how often it changed something, and how long it took."""
    from rich.table import Table

    found: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        found.setdefault((step.level, step.name), []).append(step)
    table = Table("level", "pass")
    for title in ("runs", "changes", "ms"):
        table.add_column(title, justify="right")
    for (level, name), ran in found.items():
        changes = sum(s.changed for s in ran)
        table.add_row(level, name, str(len(ran)), str(changes), _ms(ran))
    table.add_row("", "all", "", "", _ms(s for part in found.values() for s in part))
    return table


def _ms(steps: Iterable[Step]) -> str:
    return f"{1e3 * sum(s.seconds for s in steps):.2f}"
