"""`python -m gyrator.demo`: compile real models, print a table, write a report."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gyrator.demo.measure import Row, Step, measure
from gyrator.demo.models import WORKLOADS
from gyrator.reports import page

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STEPS: tuple[Step, ...] = ("inference", "training")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Returns 0 if every row is correct, else 1."""
    args = _arguments(argv)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a log has no width
    jobs = [
        (WORKLOADS[name], step, DTYPES[dtype])
        for dtype in args.dtypes
        for name in args.models
        for step in STEPS
    ]
    rows: list[Row] = []
    columns = (
        TextColumn("{task.description:32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(jobs))
        for workload, step, dtype in jobs:
            progress.update(task, description=f"{workload.name} {step} {_short(dtype)}")
            rows.append(measure(workload, step, dtype, args.repeat))
            progress.advance(task)
    console.print(table(rows))
    path = report(rows).write(Path(args.report))
    right = sum(row.right for row in rows)
    console.print(f"{right} of {len(rows)} right. Report: {path.resolve()}")
    return 0 if right == len(rows) else 1


def table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table for the terminal."""
    result = Table(*TITLES)
    for r in rows:
        *cells, right = _cells(r)
        result.add_row(*cells, "[green]yes[/]" if right == "yes" else "[red]no[/]")
    return result


def report(rows: Sequence[Row]) -> page.Page:
    """Return the rows as a page."""
    anchors = tuple(f"{r.model}-{r.step}-{_short(r.dtype)}" for r in rows)
    return page.Page(
        "Gyrator: compiled models",
        "Times are medians of interleaved runs on this machine. Errors are relative to a float64 "
        "run of the same model (L2 norm; the worst of loss, logits and all gradients together).",
        tuple(
            page.Section(
                f"{r.model}, {r.step}, {_short(r.dtype)}", r.records, anchor,
                seconds=1e-3 * r.gyrator_ms,
            )
            for r, anchor in zip(rows, anchors, strict=True)
        ),
        page.Table(TITLES, tuple(map(_cells, rows)), anchors),
    )  # fmt: skip


TITLES = (
    "model", "step", "dtype", "eager ms", "Gyrator ms", "speed", "compile s",
    "eager error", "Gyrator error", "kernels", "extern calls", "right",
)  # fmt: skip


def _cells(r: Row) -> tuple[str, ...]:
    return (
        r.model, r.step, _short(r.dtype), f"{r.eager_ms:.1f}", f"{r.gyrator_ms:.1f}",
        f"{r.eager_ms / r.gyrator_ms:.2f}x", f"{r.compile_s:.1f}", f"{r.eager_error:.1e}",
        f"{r.gyrator_error:.1e}", str(r.kernels), str(r.externs), "yes" if r.right else "no",
    )  # fmt: skip


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gyrator.demo", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["float32"])
    parser.add_argument("--repeat", type=int, default=7, help="timed runs of each")
    parser.add_argument("--report", default="gyrator-report.html", help="the HTML file to write")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
