"""Gyrator against TorchInductor and eager on this machine's CPU, interleaved in one run.

    nox -s bench -- cpu [--only run,compile,...] [--models BERT,...] [--quick] [--json FILE]

Prints tables of ratios and writes them, with every number behind them, to a JSON file. What each
number means: docs/benchmarks.md.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _environment import environment
from _kernels import CASES
from _overhead import SHAPES
from _sections import SECTIONS, Plan
from _subject import STEPS, load_models
from rich.console import Console

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str]) -> int:
    """Run the chosen sections; 1 if a measurement failed."""
    chosen = parse(arguments)
    console = Console(width=160)
    sections: dict[str, Any] = {}
    tables: dict[str, str] = {}
    report = {"environment": environment(), "arguments": arguments, "tables": tables,
              "sections": sections}  # fmt: skip
    failed = False
    with tempfile.TemporaryDirectory(prefix="gyrator-bench-") as caches:
        plan = Plan(
            models=tuple(chosen.models),
            steps=tuple(chosen.steps),
            dtype=chosen.dtype,
            threads=chosen.threads,
            rounds=3 if chosen.quick else chosen.rounds,
            cases=tuple(CASES)[:2] if chosen.quick else chosen.cases,
            shapes=tuple(SHAPES)[:1] if chosen.quick else tuple(SHAPES),
            calls=(1,) if chosen.quick else (1, 5, 20),
            caches=Path(caches),
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
        for name in (s for s in SECTIONS if s in chosen.only):
            sheet, raw = SECTIONS[name](plan)
            sheet.print(console)
            failed |= any("error" in found for found in raw.values())
            sections[name] = raw
            tables[name] = sheet.markdown()
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    console.print(f"written: {chosen.json}")
    return int(failed)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    known = tuple(load_models().WORKLOADS)
    parser = argparse.ArgumentParser(
        "bench/cpu.py", description="Gyrator, TorchInductor and eager compared on the CPU"
    )
    add = parser.add_argument
    add("--only", type=_subset(tuple(SECTIONS)), default=tuple(SECTIONS), metavar="SECTION,...")
    add("--models", type=_subset(known), default=known, metavar="MODEL,...")
    add("--steps", type=_subset(STEPS), default=STEPS, metavar="STEP,...")
    add("--cases", type=_subset(tuple(CASES), ";"), default=tuple(CASES), metavar="KERNEL;...")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--threads", type=int, default=1, help="1 makes thread time the measure (default)")
    add("--rounds", type=int, default=10, help="interleaved rounds of each timing")
    add("--quick", action="store_true", help="few rounds and cases, to see that it works")
    add("--json", type=Path, default=RESULTS / "cpu.json")
    return parser.parse_args(arguments)


def _subset(known: tuple[str, ...], comma: str = ",") -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(comma))
        if unknown := [n for n in names if n not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return read


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
