"""`gyrator options`, `modes` and `completion`."""

import argparse
import sys

from gyrator.cli.output import emit, table
from gyrator.options import list_modes, list_options


def run_options(args: argparse.Namespace) -> int:
    """Print every option, its default and what it means."""
    found = list_options()
    rows = [(name, repr(about["default"]), about["meaning"]) for name, about in found.items()]
    emit(args, found, lambda console: console.print(table(("option", "default", "meaning"), rows)))
    return 0


def run_modes(args: argparse.Namespace) -> int:
    """Print what each mode sets."""
    found = list_modes()
    sets = {n: ", ".join(f"{k}={v!r}" for k, v in o.items()) or "nothing" for n, o in found.items()}
    emit(args, found, lambda console: console.print(table(("mode", "sets"), [*sets.items()])))
    return 0


def run_completion(args: argparse.Namespace) -> int:
    """Print what a shell has to run to complete our command lines."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["gyrator"], shell=args.shell))
    return 0
