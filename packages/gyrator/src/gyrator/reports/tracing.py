"""Writing the output of each stage to a folder and to `TORCH_TRACE`."""

import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from attrs import field

from gyrator.reports.logs import trace_text
from gyrator_ir.define import frozen
from gyrator_ir.levels import level_of
from gyrator_ir.passes import Step
from gyrator_runtime.warn import warn


def _incomplete(folder: str | Path, error: OSError) -> None:
    """Warn (GY-OPTION-008) of a folder that cannot be written: a program is right without its
    trace."""
    message = f"the trace in {folder} is incomplete: {error.strerror or error}"
    warn("GY-OPTION-008", message, "set `trace_dir` to a folder that you own, with free space")


@frozen
class Trace:
    """The trace of one compile."""

    folder: Path | None = None
    """The folder of the trace; None if it is not written."""
    programs: dict[str, Any] = field(factory=dict)
    """The programs of the trace, by file name without `.gy`."""

    @classmethod
    def open(cls, root: str, phase: str) -> "Trace":
        """Create the next numbered folder under `root`; trace nothing if `root` is empty or cannot
        be written."""
        if not root:
            return cls()
        try:
            os.makedirs(root, exist_ok=True)
            for number in range(10_000):
                folder = Path(root) / f"{number:03d}_{phase}"
                try:
                    os.mkdir(folder)
                except FileExistsError:
                    continue
                return cls(folder)
            raise FileExistsError("it contains ten thousand traces")
        except OSError as error:
            _incomplete(root, error)
            return cls()

    def write(self, name: str, text: Callable[[], str]) -> None:
        """Write one file; `text` is called only if it is needed."""
        trace_text(name, text)
        if self.folder is not None:
            try:
                (self.folder / name).write_text(text(), encoding="utf-8")
            except OSError as error:
                _incomplete(self.folder, error)

    def text(self, name: str, text: str) -> None:
        """Write one file."""
        self.write(name, lambda: text)

    def ir(self, program: Any, part: str = "") -> None:
        """Write a program of any level, or the `part` of one."""
        level = level_of(program)
        name = f"{level.name}{part and f'_{part}'}"
        self.programs[name] = program
        self.write(f"{name}.gy", lambda: level.show(program))

    def passes(self, steps: Sequence[Step]) -> None:
        """Write the numbered text after each pass that changed it, and the text before if it
        differs from that of the previous file."""
        if self.folder is None:
            return
        try:
            os.makedirs(self.folder / "passes")
        except OSError as error:
            _incomplete(self.folder, error)
            return
        numbers = count()
        last = ""
        for step in (s for s in steps if s.changed):
            if step.before != last:
                self.text(f"passes/{next(numbers):03d}-{step.level}.gy", step.before)
            last = step.after
            self.text(f"passes/{next(numbers):03d}-{step.level}-{step.name}.gy", last)
