"""Output of commands, as JSON or as text."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def emit(args: argparse.Namespace, data: Any, show: Callable[[Console], object]) -> None:
    """Print data as JSON if `--json` is set, else call `show`."""
    if args.json:
        sys.stdout.write(json.dumps(data, indent=1) + "\n")
    else:
        show(Console())


def say(console: Console, text: str) -> None:
    """Print a line without wrapping or markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def table(titles: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    """Return a table of strings, which contain no markup: brackets are what they are."""
    result = Table(*titles)
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return result


def size(count: int) -> str:
    """Format a number of bytes with a unit."""
    value, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{count} bytes" if value == count else f"{value:.1f} {units[0]}"
