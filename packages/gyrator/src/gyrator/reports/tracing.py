"""Keeping what each stage made: in a folder, and for whoever reads `TORCH_TRACE`."""

import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from attrs import field, frozen

from gyrator.reports.logs import trace_text
from gyrator_ir.levels import level_of
from gyrator_ir.passes import Step


@frozen
class Trace:
    """What one compile makes."""

    folder: Path | None = None
    """Where it is written; None for nowhere."""
    programs: dict[str, Any] = field(factory=dict)
    """The programs that were written, by the names of their files without `.gy`."""

    @classmethod
    def open(cls, root: str, phase: str) -> "Trace":
        """Make the next numbered folder under `root`; an empty `root` traces nothing."""
        if not root:
            return cls()
        for number in range(10_000):
            folder = Path(root) / f"{number:03d}_{phase}"
            try:
                os.makedirs(folder)
            except FileExistsError:
                continue
            return cls(folder)
        raise FileExistsError(f"{root} holds ten thousand traces; choose another folder")

    def write(self, name: str, text: Callable[[], str]) -> None:
        """Write one file; `text` is called only if somebody wants it."""
        trace_text(name, text)
        if self.folder is not None:
            (self.folder / name).write_text(text(), encoding="utf-8")

    def text(self, name: str, text: str) -> None:
        """Write one file."""
        self.write(name, lambda: text)

    def ir(self, program: Any, part: str = "") -> None:
        """Write a program of any level, or what a `part` of a program has of that level."""
        level = level_of(program)
        name = f"{level.name}{part and f'_{part}'}"
        self.programs[name] = program
        self.write(f"{name}.gy", lambda: level.show(program))

    def passes(self, steps: Sequence[Step]) -> None:
        """Write, numbered, the text that each pass left that changed it; where the text before is
        not that of the file before, that too."""
        if self.folder is None:
            return
        os.makedirs(self.folder / "passes")
        numbers = count()
        last = ""
        for step in (s for s in steps if s.changed):
            if step.before != last:
                self.text(f"passes/{next(numbers):03d}-{step.level}.gy", step.before)
            last = step.after
            self.text(f"passes/{next(numbers):03d}-{step.level}-{step.name}.gy", last)
