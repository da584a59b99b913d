"""`gyrator options`, `modes` and `completion`."""

import argparse
import sys

from gyrator.cli.output import emit, table
from gyrator.options import list_modes, list_options


def run_options(args: argparse.Namespace) -> int:
    """Print every option with its default and meaning."""
    options = list_options()
    rows = [(name, repr(about["default"]), about["meaning"]) for name, about in options.items()]
    emit(
        args, options, lambda console: console.print(table(("option", "default", "meaning"), rows))
    )
    return 0


def run_modes(args: argparse.Namespace) -> int:
    """Print the options of each mode."""
    modes = list_modes()
    sets = {n: ", ".join(f"{k}={v!r}" for k, v in o.items()) or "nothing" for n, o in modes.items()}
    emit(args, modes, lambda console: console.print(table(("mode", "sets"), [*sets.items()])))
    return 0


def run_completion(args: argparse.Namespace) -> int:
    """Print a shell completion script."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["gyrator"], shell=args.shell))
    return 0
