"""Listing and timing of the passes of all levels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gyrator_codegen.passes.registry import every_pass
from gyrator_ir.define import frozen
from gyrator_ir.passes import Pipeline, Step
from gyrator_lowering.fx_passes import fx_pipeline, joint_pipeline
from gyrator_lowering.options import LoweringOptions
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.passes import kernel_pipeline, loop_pipeline

if TYPE_CHECKING:
    from rich.table import Table


def pipelines() -> tuple[Pipeline[Any], ...]:
    """Return the pipelines of all levels with default options, in the order in which they run: a
    user's edits may name any of their passes."""
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
    """A row in the list of passes."""

    level: str
    name: str
    about: str
    """The first line of the pass's docstring."""

    def __str__(self) -> str:
        return f"{self.level:7} {self.name:24} {self.about}"


def listed() -> list[PassRow]:
    """Return the passes of all levels, in order."""
    return [
        PassRow(p.level.name, name, (type(pass_).__doc__ or "").strip().partition("\n")[0])
        for p in pipelines()
        for name, pass_ in p.table.items()
    ]


def times(steps: Iterable[Step]) -> Table:
    """Return a table of how often each pass ran and changed something, and how long it took."""
    from rich.table import Table

    groups: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.level, step.name), []).append(step)
    table = Table("level", "pass")
    for title in ("runs", "changes", "ms"):
        table.add_column(title, justify="right")
    for (level, name), ran in groups.items():
        changes = sum(s.changed for s in ran)
        table.add_row(level, name, str(len(ran)), str(changes), _ms(ran))
    table.add_row("", "all", "", "", _ms(s for part in groups.values() for s in part))
    return table


def _ms(steps: Iterable[Step]) -> str:
    return f"{1e3 * sum(s.seconds for s in steps):.2f}"
