"""The survey of operations on a GPU, `bench/ops.py --device cuda`: its processes and its table."""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from _clock import geomean
from _environment import environment
from _gpu_ops import chosen as with_words
from _tables import Sheet
from attrs import asdict, frozen
from rich.console import Console
from rich.progress import Progress

from gyrator_conformance.process import LineProcess, ProcessEndedError, run_side_by_side

SIZES: Mapping[str, int] = MappingProxyType({"small": 1 << 16, "model": 1 << 23, "large": 1 << 26})
"""Elements that an operation works on; the large ones are more than a level-2 cache holds."""
WORKER = Path(__file__).with_name("_gpu_worker.py")
UNCAPTURED = "cannot be captured"
"""In the last words of a process that could not capture a device graph of an operation."""
QUIET = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
Row = dict[str, Any]


@frozen
class Cell:
    """What a worker measures."""

    name: str
    elements: int
    dtype: str


@frozen
class Limits:
    """What the device can do: bytes and floating-point operations a second, by type."""

    copied: float
    products: Mapping[str, float]

    def share(self, row: Row, dtype: str) -> float:
        """Return the larger of the shares that Gyrator reaches."""
        seconds = row["gyrator"] / 1e6
        return max(row["bytes"] / self.copied, row["flops"] / self.products[dtype]) / seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what only this survey takes."""
    add = parser.add_argument
    add("--sizes", default=",".join(SIZES), help="of a GPU's operations")
    add("--dtypes", default="bfloat16,float32", help="of a GPU's operations")
    add("--jobs", type=int, default=8, help="processes that compile for a GPU side by side")
    add("--seconds", type=float, default=3600.0, help="begin no other operation after this time")


def survey(chosen: argparse.Namespace) -> int:
    """Measure, print tables, and write them with their numbers; return 0 where all ran."""
    ops = with_words(chosen.only.split(","))
    cells = [
        Cell(op.name, SIZES[size], dtype)
        for dtype, size, op in product(chosen.dtypes.split(","), chosen.sizes.split(","), ops)
    ]
    limits = measured_limits()
    rows = measured(cells, chosen.jobs, chosen.seconds)
    console = Console(width=140)
    for (size, elements), dtype in product(SIZES.items(), limits.products):
        found = [c for c in rows if (c.elements, c.dtype) == (elements, dtype)]
        if found:
            sheet(f"{size}, {dtype}", found, rows, limits).print(console)
    wrong = {c: r["wrong"] for c, r in rows.items() if "wrong" in r}
    for cell, why in wrong.items():
        console.print(f"{cell.name} [{cell.elements}, {cell.dtype}]: {why}", markup=False)
    if len(rows) < len(cells):
        console.print(f"{len(cells) - len(rows)} of {len(cells)} were not begun in the time given")
    if chosen.json is not None:
        report = {
            "environment": environment() | {"device": torch.cuda.get_device_name()},
            "limits": asdict(limits),
            "rows": [asdict(c) | r for c, r in rows.items()],
        }
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(bool(wrong) or len(rows) < len(cells))


def measured(cells: list[Cell], jobs: int, seconds: float) -> dict[Cell, Row]:
    """Let processes measure the cells, each of which may end one of them."""
    rows: dict[Cell, Row] = {}
    with tempfile.NamedTemporaryFile() as lock, Progress(disable=None) as progress:
        task = progress.add_task("operations", total=len(cells))

        def work(worker: LineProcess, cell: Cell) -> Iterator[tuple[Cell, Row]]:
            row = asked(worker, cell, lock.name, "graph")
            if UNCAPTURED in row.get("wrong", ""):
                row = asked(worker, cell, lock.name, "profiler")
            yield cell, row

        def keep(measured: tuple[Cell, Row]) -> None:
            rows.update([measured])
            progress.advance(task)

        command = (sys.executable, str(WORKER))
        workers = [LineProcess(command, 240.0, QUIET) for _ in range(jobs)]
        run_side_by_side(workers, cells, work, keep, seconds)
    return rows


def asked(worker: LineProcess, cell: Cell, lock: str, how: str) -> Row:
    """Return what a process measured, or `wrong`: why it did not."""
    line = json.dumps(asdict(cell) | {"lock": lock, "how": how})
    try:
        return {"how": how} | json.loads(worker.ask(line.encode()))
    except ProcessEndedError as error:
        return {"wrong": str(error)}


def sheet(title: str, cells: list[Cell], rows: Mapping[Cell, Row], limits: Limits) -> Sheet:
    """Return the table of one size and type, the worst first."""
    found = Sheet(
        f"Operations on the device, us: {title}",
        ("operation", "eager", "inductor", "gyrator", "inductor/gyrator", "eager/gyrator",
         "of the machine", "difference"),
    )  # fmt: skip
    good = [(c, rows[c]) for c in cells if "wrong" not in rows[c]]
    for cell, row in sorted(good, key=lambda pair: _gain(pair[1])):
        found.rows.append((
            cell.name, *(row[b] for b in ("eager", "inductor", "gyrator")), f"{_gain(row):.2f}",
            f"{row['eager'] / row['gyrator']:.2f}", f"{limits.share(row, cell.dtype):.2f}",
            f"{row['difference']:.1e}",
        ))  # fmt: skip
    gains = [_gain(row) for _, row in good]
    behind = sum(g < 0.95 for g in gains)
    found.summary.append(
        f"geometric mean of inductor/gyrator {geomean(gains):.3f}; "
        f"{behind} of {len(gains)} below 0.95"
    )
    return found


def _gain(row: Row) -> float:
    return float(row["inductor"] / row["gyrator"])


def measured_limits() -> Limits:
    """Measure a large copy and large products."""
    from triton.testing import do_bench

    a = torch.empty(1 << 28, device="cuda", dtype=torch.bfloat16)
    b = torch.empty_like(a)
    copied = 2 * a.nbytes / (do_bench(lambda: b.copy_(a)) / 1e3)
    products = {}
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(4096, 4096, device="cuda", dtype=dtype)
        taken = do_bench(lambda x=x: x @ x) / 1e3
        products[str(dtype).removeprefix("torch.")] = 2 * 4096**3 / taken
    return Limits(copied, products)
