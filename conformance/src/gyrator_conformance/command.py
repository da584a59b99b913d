"""What the command lines of this package share: arguments, and how progress is shown."""

import argparse
import math
import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

USAGE = 2
"""The exit status for an invalid command line."""


def terminal(width: int) -> Console:
    """Return a console, which is `width` columns wide if it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else width)


def progress(console: Console) -> Progress:
    """Return a progress bar, which is shown on terminals only."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def names(choices: tuple[str, ...] = ()) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of comma-separated names."""

    def read(text: str) -> tuple[str, ...]:
        chosen = tuple(filter(None, text.split(",")))
        if not chosen or (choices and not {*chosen} <= {*choices}):
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(choices)}")
        return chosen

    return read


def add_limits(parser: argparse.ArgumentParser, item: str, limit: float = 300.0) -> None:
    """Add the number of workers, and the time limits of one item and of the whole run."""
    add = parser.add_argument
    add("--jobs", type=_positive, default=1, help="worker processes side by side, default 1")
    add("--limit", type=float, default=limit, help=f"seconds that one {item} may take")
    add("--seconds", type=float, default=math.inf, help=f"begin no other {item} after this time")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
