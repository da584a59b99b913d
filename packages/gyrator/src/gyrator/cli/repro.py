"""`gyrator repro`, `minify` and `bisect`: diagnose failures of the text of a graph."""

import argparse
import sys
from pathlib import Path
from typing import Any

from attrs import asdict

from gyrator.cli.output import emit, say
from gyrator.options import make_options, options_of_text
from gyrator_ir.diagnostics import GyratorError


class ReproError(GyratorError):
    """There is no failure to minimise."""


def run_repro(args: argparse.Namespace) -> int:
    """Print the failure of a graph; return 1 if there is one."""
    from gyrator.repro.failure import find_failure

    failure = find_failure(_graph(args.file), _options(args), timed=args.slow)
    emit(args, asdict(failure), lambda console: say(console, str(failure)))
    return 1 if failure.kind else 0


def run_minify(args: argparse.Namespace) -> int:
    """Write the smallest graph with the same failure, and a script that reproduces it."""
    from gyrator.repro.minify import calls, minify
    from gyrator.repro.script import write_repro
    from gyrator.repro.worker import Worker
    from gyrator_lowering.fx_text import parse

    text, options = _graph(args.file), _options(args)
    with Worker(options, args.seconds, timed=args.kind in ("any", "slow")) as attempt:
        first = attempt(text)
        if first.kind in ("", "not run") or args.kind not in ("any", first.kind):
            raise _no_failure(args.file, first)
        count = calls(text)
        print(f"{first}\n{count} calls", file=sys.stderr)

        def fails(shorter: str) -> bool:
            alike = attempt(shorter).alike(first)
            if alike:
                print(f"{calls(shorter)} calls, {attempt.tries} tries", file=sys.stderr)
            return alike

        small = minify(text, fails)
    print(small, end="")
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
    path = write_repro(parse(small), make_options(options=options), args.output)
    print(f"{path} reproduces it", file=sys.stderr)
    return 0


def run_bisect(args: argparse.Namespace) -> int:
    """Print the culprit, and write the texts before and after it; return 1 if there is one."""
    from gyrator.repro.bisect import bisect

    culprit = bisect(_graph(args.file), _options(args))
    written: list[str] = []
    if args.output is not None and culprit.stage:
        args.output.mkdir(parents=True, exist_ok=True)
        for name, text in (("before.gy", culprit.before), ("after.gy", culprit.after)):
            if text:
                (args.output / name).write_text(text, "utf-8")
                written.append(str(args.output / name))
    emit(args, asdict(culprit), lambda console: say(console, "\n".join((str(culprit), *written))))
    return 1 if culprit.stage else 0


def _graph(path: Path) -> str:
    from gyrator_lowering.fx_text import parse

    text = path.read_text("utf-8")
    parse(text)
    return text


def _options(args: argparse.Namespace) -> dict[str, Any]:
    options = options_of_text(args.option)
    make_options(options=options)
    return options


def _no_failure(file: Path, failure: Any) -> ReproError:
    message = f"{file}: {failure}"
    help = "use the options with which it fails; `--for slow` compares times"
    return ReproError.of("GY-OPT-004", message, help=help)
