"""The command line; `gyrator --help` lists its commands."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from gyrator.cli.parser import make_parser
from gyrator_ir.diagnostics import GyratorError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0, 1 for a finding, 2 for bad input."""
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # set by a shell for completion
        import argcomplete

        argcomplete.autocomplete(parser)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        args.parser.refuse(unknown)
    module, _, function = args.run.partition(":")
    try:
        args.parser.check(args)
        status: int = getattr(import_module(module), function)(args)
    except GyratorError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"gyrator: {message}", file=sys.stderr)
        return 2
    return status
