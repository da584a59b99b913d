"""Progress of long compiles, on a terminal only.

A waiting caller calls `advance` periodically. Nothing is drawn before `delay` seconds have passed,
so short compiles are silent, and nothing at all if the stream is not a terminal.
"""

import time
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressReporter:
    """Receives progress of a long-running phase, and shows nothing."""

    def start(self, what: str, total: int) -> None:
        """Start a phase of `total` steps, for example ("compiling kernels", 12)."""

    def advance(self, done: int = 1) -> None:
        """Count `done` more steps of the current phase, perhaps none: it is called a few times per
        second."""

    def finish(self) -> None:
        """End the phase and remove the display."""


class TerminalProgress(ProgressReporter):
    """A progress bar on a terminal, drawn once a phase has lasted `delay` seconds."""

    def __init__(self, stream: TextIO, delay: float = 1.0) -> None:
        self._stream = stream
        self._delay = delay
        self._bar: Progress | None = None
        self._what, self._total, self._done, self._begin = "", 0, 0, 0.0

    def start(self, what: str, total: int) -> None:
        """Start a phase of `total` steps."""
        self.finish()
        self._what, self._total, self._done = what, total, 0
        self._begin = time.monotonic()

    def advance(self, done: int = 1) -> None:
        """Count `done` more steps, and draw the bar if it is due."""
        self._done += done
        if self._bar is None:
            if self._total == 0 or time.monotonic() - self._begin < self._delay:
                return
            self._bar = _bar(self._stream)
            self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._done, refresh=True)

    def finish(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


def _bar(stream: TextIO) -> "Progress":
    # rich takes about 0.1 s to import, which only a long compile on a terminal should pay for.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("gyrator: {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
        auto_refresh=False,
    )


def make_progress(stream: TextIO) -> ProgressReporter:
    """Return a progress bar if `stream` is a terminal, else a silent reporter."""
    try:
        terminal = stream.isatty()
    except (AttributeError, ValueError):  # closed, or replaced by another object
        terminal = False
    return TerminalProgress(stream) if terminal else ProgressReporter()
