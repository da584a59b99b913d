"""`python -m gyrator_conformance.opinfo --shard 1/40`: all samples of all ops against eager."""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import asdict, define, evolve, field
from rich.console import Console
from rich.table import Table

from gyrator_conformance.command import add_limits, names, terminal
from gyrator_conformance.opinfo.judge import Outcome
from gyrator_conformance.opinfo.samples import LAYOUTS, Case, cases, slice_of
from gyrator_conformance.process import LineProcess, ProcessEndedError, run_side_by_side
from gyrator_ir.types import HOST

_EVERY = 60.0
"""The seconds between two lines of progress."""
_QUIET = {"OMP_NUM_THREADS": "1", "TORCH_LOGS": "-all"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the samples; return 0 if each agrees with eager or is explained, else 1."""
    args = _parser().parse_args(arguments)
    console = terminal(120)
    chosen = [
        evolve(case, most=args.samples)
        for case in cases(args.dtypes, args.layouts, args.modes, args.shapes, args.device)
        if args.k in str(case)
    ]
    chosen = slice_of(chosen, *args.shard)
    if args.shuffle is not None:
        random.Random(args.shuffle).shuffle(chosen)
    command = (sys.executable, "-m", "gyrator_conformance.opinfo.worker")
    workers = [LineProcess(command, args.limit, _QUIET) for _ in range(args.jobs)]
    tally = _Tally(console, len(chosen))

    def work(worker: LineProcess, case: Case) -> Iterator[tuple[Case, Outcome]]:
        try:
            yield case, Outcome(**json.loads(worker.ask(json.dumps(asdict(case)).encode())))
        except ProcessEndedError as error:
            kind = "time" if error.slow else "crash"
            yield case, Outcome(findings=((kind, str(error), ""),))

    run_side_by_side(workers, chosen, work, tally.add, args.seconds)
    console.print(tally.table())
    if args.json:
        args.json.write_text(json.dumps(tally.summary(), indent=1) + "\n", encoding="utf-8")
    if tally.cases < len(chosen):
        console.print(f"{len(chosen) - tally.cases} cases were not begun in {args.seconds} s")
    return int(bool(tally.failed))


@define(eq=False)
class _Tally:
    """Counts samples, and prints a line for each unexplained difference."""

    console: Console
    chosen: int
    cases: int = 0
    ops: set[str] = field(factory=set)
    counts: Counter[str] = field(factory=Counter)
    failed: list[tuple[str, str, str]] = field(factory=list)
    explained: list[tuple[str, str, str, str]] = field(factory=list)
    _said: float = field(factory=time.monotonic)

    def add(self, judged: tuple[Case, Outcome]) -> None:
        """Add the outcome of a case."""
        case, outcome = judged
        self.cases += 1
        self.ops.add(case.op)
        self.counts["samples"] += outcome.samples
        self.counts["refused by eager mode"] += outcome.refused
        self.counts["graphs"] += outcome.graphs
        for kind, detail, explained in outcome.findings:
            self.counts[f"differ, {explained or 'unexplained'}"] += 1
            if explained:
                self.explained.append((str(case), kind, detail, explained))
            else:
                self.failed.append((str(case), kind, detail))
                line = f"{case}: {kind}: {detail}"
                self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        if time.monotonic() - self._said > _EVERY:
            self._said = time.monotonic()
            done = f"{self.cases} of {self.chosen} cases, {len(self.failed)} unexplained"
            self.console.print(f"{done}; {case}", markup=False, highlight=False)

    def summary(self) -> dict[str, object]:
        """Return the counts, and each sample that differs, as JSON data."""
        return {
            "chosen": self.chosen, "cases": self.cases, "ops": len(self.ops),
            "counts": dict(self.counts), "unexplained": self.failed, "explained": self.explained,
        }  # fmt: skip

    def table(self) -> Table:
        """Return the number of samples by outcome."""
        table = Table("what", "count")
        table.add_row("ops", f"{len(self.ops)}")
        table.add_row("cases", f"{self.cases}")
        for what, count in self.counts.items():
            table.add_row(what, f"{count}")
        return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gyrator_conformance.opinfo",
        description="Compile every op of torch's database and compare it with eager execution.",
    )
    add = parser.add_argument
    add("-k", default="", help="words in the name of a case: op/dtype/layout/mode/shapes")
    add("--dtypes", type=names(), default=(), help="element types, default all that an op takes")
    add("--layouts", type=names(), default=LAYOUTS, help=f"default {','.join(LAYOUTS)}")
    add("--modes", type=names(), default=("forward", "gradient"), help="default forward,gradient")
    add("--shapes", type=names(), default=("static", "dynamic"), help="default static,dynamic")
    add("--device", default=HOST, help=f"where tensors lie, default {HOST}")
    add(
        "--shard",
        type=_shard,
        default=(1, 1),
        help="K/N: the K-th of N slices",
    )
    add("--samples", type=int, help="of each case at most so many, default all")
    add("--shuffle", type=int, metavar="SEED",
        help="take cases in a random order, for runs that --seconds cuts short")  # fmt: skip
    add_limits(parser, "case")
    add("--json", type=Path, help="write counts and what differs here")
    return parser


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise argparse.ArgumentTypeError(f"{text}: K/N with K from 1 to N")
    return int(part), int(parts)


if __name__ == "__main__":
    sys.exit(main())
