"""`python -m gyrator_conformance`: run the suite, or a part of it, and report."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from gyrator.options import list_options
from gyrator_conformance.cells import DTYPES, Cell, Selection
from gyrator_conformance.command import USAGE, add_limits, names, progress, terminal
from gyrator_conformance.models import all_models
from gyrator_conformance.profiles import UnknownTargetError, find_target
from gyrator_conformance.report import (
    as_html,
    as_json,
    as_junit,
    read_json,
    score_table,
    table,
    versions,
)
from gyrator_conformance.running import Result
from gyrator_conformance.suite import Worker, run_cells
from gyrator_conformance.worker import VERIFY
from gyrator_ir.diagnostics import GyratorError

INTERRUPTED = 130
"""The exit status that shells give a command ended by Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; return 0 if every cell passes or has a reason not to run, 1 if one fails, 2
    for an invalid command line, 130 if the run was interrupted."""
    args = _parser().parse_args(arguments)
    console = terminal(120)
    models = all_models()
    try:
        selection = Selection(
            targets=args.target,
            wrappers=args.wrapper,
            shapes=args.shapes,
            modes=args.modes,
            dtypes=args.dtypes,
            graphs=args.graphs,
            package=args.package,
            keyword=args.keyword,
        )
        cells = list(selection.cells(models.values()))
        targets = {name: find_target(name) for name in selection.targets}
    except (ValueError, UnknownTargetError, GyratorError) as error:
        console.print(f"[red]{error}[/red]")
        return USAGE
    if not cells:
        console.print("[red]no cell matches[/red]; --list without other options names all")
        return USAGE
    if args.list:
        _list(cells)
        return 0
    try:
        known = _earlier(args.resume, cells, console)
        _prepare(args)
    except (ValueError, OSError) as error:
        console.print(f"[red]{escape(str(error))}[/red]")
        return USAGE
    left = [cell for cell in cells if cell not in known or known[cell].status == "fail"]
    workers = [Worker(args.limit, args.seed) for _ in range(args.jobs)]
    if args.verify:
        workers = [evolve(w, command=(*w.command, VERIFY)) for w in workers]
    try:
        with progress(console) as bar:
            task = bar.add_task("", total=len(left))
            display = _Shown(console, bar, task, len(left), known)
            run_cells(left, models, targets, workers, display, args.seconds)
    except KeyboardInterrupt:
        done = sum(cell in known for cell in cells)
        again = f"`--resume {args.json}` runs the others" if args.json else "--json would keep them"
        message = f"[red]interrupted[/red] after {done} of {len(cells)} cells; {escape(again)}"
        console.print(message, soft_wrap=True)
        return INTERRUPTED
    finally:  # an interrupted run can be resumed
        results = [known[cell] for cell in cells if cell in known]
        _write(args, results)
    console.print(table(results))
    console.print(score_table(results))
    if args.verify:
        agree, kernels = sum(r.verified for r in results), sum(r.kernels for r in results)
        console.print(f"{agree} of {kernels} kernels agree with their IR")
    failed = [r for r in results if r.status == "fail"]
    for r in failed:
        console.print(f"[red]failed[/red] {r.cell.name}: {r.message.splitlines()[0]}", markup=True)
    unrun = len(cells) - len(results)
    if unrun:
        console.print(f"[red]{unrun} cells did not run[/red] in {args.seconds:.0f} s; see --resume")
    return int(bool(failed or unrun))


def _list(cells: Sequence[Cell]) -> None:
    """Print the names of cells, until the reader of a pipe, such as `head`, has enough."""
    try:
        for cell in cells:
            print(cell.name)
        sys.stdout.flush()
    except BrokenPipeError:  # the interpreter flushes again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _earlier(paths: Sequence[Path], cells: Sequence[Cell], console: Console) -> dict[Cell, Result]:
    """Return the results of earlier runs with the same versions for these cells; later files
    win. Raises ValueError for a file that holds no results."""
    selected = set(cells)
    results_by_cell: dict[Cell, Result] = {}
    for path in paths:
        if not path.exists():
            console.print(f"{escape(str(path))} does not exist: there is nothing to resume from it")
            continue
        try:
            header, results = read_json(path.read_text())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ValueError(f"--resume: {path} holds no results of a run ({why})") from error
        if header == versions():
            results_by_cell |= {r.cell: r for r in results if r.cell in selected}
        else:
            console.print(f"{path} holds for other versions: its cells run again")
    return results_by_cell


class _Shown:
    """Collects results, advances the progress bar, and prints failures as they occur."""

    def __init__(
        self, console: Console, bar: Progress, task: Any, total: int, known: dict[Cell, Result]
    ) -> None:
        self._console, self._bar, self._task, self._total = console, bar, task, total
        self._known = known
        self._done = 0

    def __call__(self, result: Result) -> None:
        self._done += 1
        self._known[result.cell] = result
        self._bar.update(self._task, advance=1, description=result.cell.name)
        if result.status == "fail":
            self._console.print(f"[red]failed[/red] {result.cell.name}", highlight=False)
        if not self._console.is_terminal and (self._done % 25 == 0 or self._done == self._total):
            self._console.print(f"{self._done} of {self._total} cells", highlight=False)


def _prepare(args: argparse.Namespace) -> None:
    """Raise OSError now for a report that could not be written after hours."""
    for path in filter(None, (args.json, args.junit, args.html)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; give the name of a file")


def _write(args: argparse.Namespace, results: Sequence[Result]) -> None:
    command = shlex.join(["python", "-m", "gyrator_conformance", *sys.argv[1:]])
    writers: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (args.json, lambda: as_json(results, command)),
        (args.junit, lambda: as_junit(results)),
        (args.html, lambda: as_html(results, command)),
    )
    for path, text in writers:
        if path is not None:
            path.write_text(text())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gyrator_conformance",
        description="Run models on targets and host languages, and compare them with float64.",
    )
    add = parser.add_argument
    add("--target", type=names(), default=("cpu",), help="names of targets, default cpu")
    wrappers = list_options()["wrapper"]["choices"]
    add(
        "--wrapper",
        type=names(wrappers),
        default=("python",),
        help="host languages, default python",
    )
    add("-k", dest="keyword", default="", help="expression over names of cells, as pytest's -k")
    add("--dtypes", type=names(tuple(DTYPES)), default=tuple(DTYPES), help="element types")
    both = ("inference", "training")
    add("--modes", type=names(both), default=both, help="inference, training")
    forms = ("static", "dynamic")
    add("--shapes", type=names(forms), default=forms, help="static, dynamic")
    whether = ("off", "on")
    graphs = "replay graphs of the device: off, on, or both; default off"
    add("--graphs", type=names(whether), default=("off",), help=graphs)
    packaged = (
        "run the model from a package, in a process of its own: off, on, standalone (by C, "
        "without torch), libtorch (by C, with libtorch), or several; default off"
    )
    ways = (*whether, "standalone", "libtorch")
    add("--package", type=names(ways), default=("off",), help=packaged)
    verify = "run every kernel beside the interpreter of its IR, too"
    add(VERIFY, action="store_true", help=verify)
    add("--json", type=Path, help="write results, scores and versions here")
    add("--junit", type=Path, help="write JUnit's XML here")
    add("--html", type=Path, help="write the matrix as a page here")
    add("--seed", type=int, default=0, help="of weights and inputs")
    add_limits(parser, "cell")
    again = "JSON of an earlier run: only its failures run again; may be given several times"
    add("--resume", type=Path, action="append", default=[], help=again)
    add("--list", action="store_true", help="name the cells and run none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
