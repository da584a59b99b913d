"""`python -m gyrator_conformance.families --only bert,mamba`: published models against eager."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

from attrs import asdict, define, field
from rich.console import Console
from rich.table import Table

from gyrator_conformance.command import add_limits, names, terminal
from gyrator_conformance.families.judge import Form, Outcome
from gyrator_conformance.families.table import all_families
from gyrator_conformance.process import LineProcess, ProcessEndedError, run_side_by_side

_QUIET = {"OMP_NUM_THREADS": "1", "TORCH_LOGS": "-all", "TRANSFORMERS_VERBOSITY": "error"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the families; return 0 if all agree with eager mode and none falls back to it."""
    args = _parser().parse_args(arguments)
    console = terminal(140)
    families = all_families()
    if unknown := [name for name in args.only if name not in families]:
        console.print(f"no family is called {', '.join(unknown)}; there are {', '.join(families)}")
        return 2
    forms = [
        Form(name, mode, shapes)
        for name, shapes, mode in product(args.only or families, args.shapes, args.modes)
        if mode == "inference" or families[name].trains
    ]
    if args.list:
        console.print("\n".join(map(str, forms)), markup=False, highlight=False)
        return 0
    results = _judged(forms, args, console)
    console.print(results.table())
    if args.json:
        args.json.write_text(json.dumps(results.as_json(), indent=1) + "\n", encoding="utf-8")
    if len(results.rows) < len(forms):
        console.print(f"{len(forms) - len(results.rows)} forms were not begun in {args.seconds} s")
    return int(any(outcome.failed for _, outcome in results.rows))


def _judged(forms: Sequence[Form], args: argparse.Namespace, console: Console) -> "_Found":
    """Check the forms of each family in a process of their own."""
    command = (sys.executable, "-m", "gyrator_conformance.families.worker")
    workers = [LineProcess(command, args.limit, _QUIET) for _ in range(args.jobs)]
    results = _Found(console)
    families = [list(group) for _, group in groupby(forms, lambda form: form.name)]

    def work(worker: LineProcess, family: Sequence[Form]) -> Iterator[tuple[Form, Outcome]]:
        for form in family:
            try:
                yield form, Outcome(**json.loads(worker.ask(json.dumps(asdict(form)).encode())))
            except ProcessEndedError as error:
                yield form, Outcome(kind="time" if error.slow else "crash", detail=str(error))
        worker.close()  # what one leaves behind must not help or harm the next

    run_side_by_side(workers, families, work, results.add, args.seconds)
    return results


@define(eq=False)
class _Found:
    """Collects outcomes, and prints failures as they occur."""

    console: Console
    rows: list[tuple[Form, Outcome]] = field(factory=list)

    def add(self, judged: tuple[Form, Outcome]) -> None:
        """Add the outcome of a form."""
        form, outcome = judged
        self.rows.append(judged)
        if outcome.failed:
            line = f"{form}: {outcome.kind}: {outcome.detail}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def table(self) -> Table:
        """Return a table with a row for each form, worst first."""
        table = Table(
            "family", "result", "error / bound", "graphs", "breaks", "eager", "refused", "kernels",
            "seconds", "by aot_eager",
        )  # fmt: skip
        for form, o in sorted(self.rows, key=_badness, reverse=True):
            result = " ".join(filter(None, (o.kind or "right", o.explained)))
            error = f"{o.error:.1e} / {o.bound:.1e}"
            counts = (o.graphs, o.breaks, o.eager, len(o.refused), o.kernels)
            times = (f"{o.seconds:.1f}", f"{o.plain_seconds:.1f}")
            table.add_row(str(form), result, error, *map(str, counts), *times)
        failed = sum(o.failed for _, o in self.rows)
        names = {form.name for form, _ in self.rows}
        table.add_section()
        table.add_row(f"{len(names)} families, {len(self.rows)} forms", f"{failed} fail")
        return table

    def as_json(self) -> list[dict[str, Any]]:
        """Return all outcomes, worst first."""
        return [
            {**asdict(form), **asdict(outcome)}
            for form, outcome in sorted(self.rows, key=_badness, reverse=True)
        ]


def _badness(row: tuple[Form, Outcome]) -> tuple[float, ...]:
    _, o = row
    slowness = o.seconds / o.plain_seconds if o.plain_seconds else 0.0
    return (o.failed, bool(o.kind), o.eager, len(o.refused), slowness)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gyrator_conformance.families",
        description="Compile small models of published families and compare them with eager mode.",
    )
    add = parser.add_argument
    add("--only", type=names(), default=(), help="names of families, default all")
    add("--modes", type=names(), default=("inference", "training"), help="default both")
    add("--shapes", type=names(), default=("static",), help="static, dynamic; default static")
    add("--list", action="store_true", help="name what would be compiled, and stop")
    add_limits(parser, "form")
    add("--json", type=Path, help="write what was found here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
