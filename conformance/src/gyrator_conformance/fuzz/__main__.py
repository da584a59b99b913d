"""`python -m gyrator_conformance.fuzz --graphs 1000 --seed 0`: random programs against eager."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from attrs import asdict, define, field
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gyrator_conformance.command import USAGE, add_limits, names, progress, terminal
from gyrator_conformance.fuzz.campaign import Finding, Jury, run_campaign
from gyrator_conformance.fuzz.judge import Judge
from gyrator_conformance.fuzz.program import Program
from gyrator_conformance.profiles import UnknownTargetError, find_target
from gyrator_ir.types import HOST


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return 0 if every program agrees with eager or is explained, else 1."""
    args = _parser().parse_args(arguments)
    console = terminal(120)
    try:
        chosen = find_target(args.target)
    except UnknownTargetError as error:
        console.print(f"[red]{error}[/red]")
        return USAGE
    if args.replay:
        program = Program.from_json(args.replay.read_text(encoding="utf-8"))
        verdict = Judge(chosen.config, chosen.target.device).judge(program)
        console.print(program.text, markup=False, highlight=False)
        console.print(verdict)
        return int(bool(verdict.kind and not verdict.explained))
    wrappers = tuple(w for w in args.wrapper if w in chosen.target.wrapper_backends)
    seeds = range(args.seed, args.seed + args.graphs)
    juries = [Jury(args.target, args.limit) for _ in range(args.jobs)]
    with progress(console) as bar:
        display = _Shown(console, bar, args.graphs, args.out)
        run_campaign(seeds, wrappers, juries, display, args.seconds, not args.no_shrink)
    console.print(display.table())
    if args.json:
        args.json.write_text(json.dumps(display.summary(args), indent=1) + "\n", encoding="utf-8")
    if display.judged < args.graphs:
        console.print(f"{args.graphs - display.judged} programs were not begun in {args.seconds} s")
    return int(bool(display.unexplained))


@define(eq=False)
class _Shown:
    """Counts findings, and writes a line and a file for each unexplained one."""

    console: Console
    bar: Progress
    total: int
    out: Path
    judged: int = 0
    graphs: int = 0
    counts: Counter[tuple[str, str]] = field(factory=Counter)
    unexplained: list[Finding] = field(factory=list)
    _task: object = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._task = self.bar.add_task("programs", total=self.total)

    def __call__(self, finding: Finding) -> None:
        verdict = finding.verdict
        self.judged += 1
        self.graphs += verdict.graphs
        self.counts[verdict.kind, verdict.explained] += 1
        self.bar.update(self._task, advance=1)  # type: ignore[arg-type]  # rich's int type
        if not verdict.kind or verdict.explained:
            return
        self.unexplained.append(finding)
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{finding.seed}-{verdict.kind}.json"
        path.write_text(finding.program.as_json() + "\n", encoding="utf-8")
        line = f"{path}: {verdict.detail}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self.console.print(finding.program.text, markup=False, highlight=False)

    def table(self) -> Table:
        """Return the number of programs by outcome."""
        table = Table("what differs", "explained by", "programs")
        for (kind, explained), count in sorted(self.counts.items(), key=lambda row: -row[1]):
            table.add_row(
                kind or "nothing", explained or ("" if not kind else "nothing"), f"{count}"
            )
        table.add_row("all", "", f"{self.judged} ({self.graphs} graphs)")
        return table

    def summary(self, args: argparse.Namespace) -> dict[str, object]:
        """Return the counts as JSON data."""
        counts = [[kind, why, count] for (kind, why), count in self.counts.items()]
        programs = [asdict(f) for f in self.unexplained]
        return {
            "target": args.target, "seed": args.seed, "programs": self.judged,
            "graphs": self.graphs, "counts": counts, "unexplained": programs,
        }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gyrator_conformance.fuzz",
        description="Compile random programs and compare them with eager execution.",
    )
    add = parser.add_argument
    add("--graphs", type=int, default=200, help="programs to draw, default 200")
    add("--seed", type=int, default=0, help="of the first program; the others follow")
    add("--target", default=HOST, help=f"name of a target, default {HOST}")
    wrappers = ("python", "cpp", "fx")
    add("--wrapper", type=names(), default=wrappers,
        help="host languages to choose from, default python,cpp,fx")  # fmt: skip
    add_limits(parser, "program", 60.0)
    add("--out", type=Path, default=Path("fuzz-failures"), help="folder of failing programs")
    add("--json", type=Path, help="write counts and failing programs here")
    add("--no-shrink", action="store_true", help="keep failing programs as they were drawn")
    add("--replay", type=Path, help="judge one program from a file that a run wrote")
    return parser


if __name__ == "__main__":
    sys.exit(main())
