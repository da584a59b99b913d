"""Gyrator against other runtimes on a CPU: OpenVINO, ONNX Runtime, TorchInductor, eager.

    nox -s bench -- cpu-peers [--models BERT,...] [--subjects gyrator,...] [--threads 1] ...
    nox -s bench -- cpu-peers --step training
    nox -s bench -- cpu-peers --dtype int8
    nox -s bench -- cpu-peers --step training --memory

Each subject has a process of its own, so that thread pools and allocators of one cannot help or
hurt another; the processes take turns. Every number is a ratio: the peer's least time by ours. With
one thread it is the time of the process, which other load leaves alone, else the clock's. With
`--memory`, it is the peak of what one call allocates with PyTorch's allocator.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from _clock import geomean
from _environment import environment
from _peer_models import PEERS
from _tables import Sheet
from attrs import frozen
from rich.console import Console

SUBJECTS = (
    "gyrator", "gyrator frozen", "gyrator frozen fast", "gyrator package", "eager", "inductor",
    "inductor frozen", "inductor tuned", "onnxruntime", "openvino",
)  # fmt: skip
TRAINING = ("gyrator", "eager", "inductor")
"""The subjects that have gradients."""
_OWN_ALLOCATORS = ("onnxruntime", "openvino")
"""The subjects whose memory PyTorch does not allocate."""
OURS = ("gyrator frozen", "gyrator")
"""What others are divided by: the first that is measured."""
_TURN_SECONDS = 0.05
_CLOSE = MappingProxyType({"float32": 1e-3, "bfloat16": 0.1, "int8": 0.5})
"""A larger relative error than this is a wrong model, not another order of sums or coarser numbers,
unless that of eager mode in `float32` is at least half as large."""


@frozen
class Case:
    """What the subjects run."""

    model: str
    step: str
    dtype: str

    memory: bool = False

    @property
    def subjects(self) -> tuple[str, ...]:
        """Return those that can."""
        known = TRAINING if self.step == "training" else SUBJECTS
        if self.memory:
            known = tuple(n for n in known if n not in _OWN_ALLOCATORS)
        return tuple(n for n in known if (n, self.dtype) != ("onnxruntime", "bfloat16"))


def failure(name: str, dtype: str, told: Mapping[str, Any]) -> str:
    """Return why a subject is not measured, from its first line; empty if it is."""
    allowed = max(_CLOSE[dtype], 2 * told.get("eager", 0))
    wrong = name != "eager" and told.get("error", 0) > allowed
    return f"error of {told['error']:.1e}" if wrong else str(told.get("failure", ""))


class Subject:
    """A process that runs one model in one way."""

    def __init__(self, name: str, case: Case, threads: int, caches: Path) -> None:
        """Start it and wait until it has built; `failure` says why it could not."""
        script = str(Path(__file__).with_name("_peer.py"))
        folder = caches / name.replace(" ", "-")
        settings = {
            "GYRATOR_CACHE_DIR": str(folder),
            "TORCHINDUCTOR_CACHE_DIR": str(folder),
            "OMP_NUM_THREADS": str(threads),
        }
        self.process = subprocess.Popen(
            [sys.executable, script, name, case.model, case.step, case.dtype, str(threads),
             str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | settings,
        )  # fmt: skip
        self.seconds = [float("inf"), float("inf")]
        told = self._line()
        self.failure = failure(name, case.dtype, told)
        timed = not self.failure and not case.memory
        self.calls = max(1, int(_TURN_SECONDS / self.turn(1)[0])) if timed else 0

    def turn(self, calls: int) -> list[float]:
        """Let it run; return the seconds of a call, and remember the least."""
        found: list[float] = self._answer(str(calls))
        self.seconds = [min(pair) for pair in zip(self.seconds, found, strict=True)]
        return found

    def megabytes(self) -> float:
        """Return the peak of a call."""
        peak: int = self._answer("memory")
        return peak / 1e6

    def end(self) -> None:
        """Close its input, which ends it."""
        if self.process.poll() is None:
            self.process.communicate()

    def _answer(self, line: str) -> Any:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        lines = (self.process.communicate()[1].strip() or "ended silently").splitlines()
        print("\n".join(lines[-12:]), file=sys.stderr)
        return {"failure": lines[-1][:80]}


def measure(
    case: Case, subjects: Sequence[str], threads: int, turns: int, caches: Path
) -> dict[str, Any]:
    """Return the milliseconds, or megabytes, of a call by subject, or why there are none."""
    running = {}
    for name in subjects:
        print(f"{case.model}, {threads} thread(s): {name}", file=sys.stderr, flush=True)
        running[name] = Subject(name, case, threads, caches / case.model)
    for _ in range(turns):
        for subject in running.values():
            if subject.calls:
                subject.turn(subject.calls)
    peaks = {n: s.failure or s.megabytes() for n, s in running.items()} if case.memory else {}
    for subject in running.values():
        subject.end()
    clock = 1 if threads == 1 else 0
    return peaks or {n: s.failure or 1e3 * s.seconds[clock] for n, s in running.items()}


def table(
    what: str, rows: dict[str, dict[str, Any]], subjects: Sequence[str], memory: bool = False
) -> Sheet:
    """Return the ratios as a sheet, with their geometric means."""
    ours = next((n for n in OURS if n in subjects), subjects[0])
    others = tuple(n for n in subjects if n != ours)
    kind, unit = ("Peak memory", "MB") if memory else ("Time", "ms")
    sheet = Sheet(f"{kind} by that of {ours}, {what}", ("model", f"{ours} {unit}", *others))
    ratios: dict[str, list[float]] = {n: [] for n in others}
    for model, found in rows.items():
        cells = []
        for name in others:
            both = found[name], found[ours]
            if any(isinstance(one, str) for one in both):
                cells.append(str(found[name])[:20])
                continue
            ratios[name].append(both[0] / both[1])
            cells.append(f"{ratios[name][-1]:.2f}")
        mine = found[ours]
        sheet.rows.append((model, mine if isinstance(mine, float) else mine[:20], *cells))
    means = [f"{geomean(ratios[n]):.2f}" if ratios[n] else "" for n in others]
    sheet.rows.append(("geometric mean", "", *means))
    return sheet


def main(arguments: list[str]) -> int:
    """Measure what is asked for, print tables, write JSON; 1 if anything failed."""
    parser = argparse.ArgumentParser("bench/cpu_peers.py")
    add = parser.add_argument
    add("--models", type=lambda t: t.split(","), default=list(PEERS))
    add("--subjects", type=lambda t: t.split(","), help="default: all that can")
    add("--step", choices=("inference", "training"), default="inference")
    add("--dtype", choices=tuple(_CLOSE), default="float32", help="int8: for inference only")
    add("--memory", action="store_true", help="the peak of a call instead of its time")
    add("--threads", type=lambda t: [int(n) for n in t.split(",")], help="default: 1,2; 1 (memory)")
    add("--turns", type=int, default=12)
    add("--json", type=Path, default=Path(__file__).parent / "results" / "cpu-peers.json")
    chosen = parser.parse_args(arguments)
    cases = [Case(model, chosen.step, chosen.dtype, chosen.memory) for model in chosen.models]
    subjects = chosen.subjects or cases[0].subjects
    unknown = {*chosen.models} - {*PEERS} | {*subjects} - {*cases[0].subjects}
    if unknown:
        parser.error(f"no such model or subject here: {', '.join(sorted(unknown))}")
    if (chosen.step, chosen.dtype) == ("training", "int8"):
        parser.error("int8 is for inference only")
    console = Console(width=160)
    unit = "megabytes" if chosen.memory else "milliseconds"
    report: dict[str, Any] = {
        "environment": environment(), "step": chosen.step, "dtype": chosen.dtype,
        unit: {}, "tables": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="gyrator-peers-") as caches:
        for threads in chosen.threads or ([1] if chosen.memory else [1, 2]):
            rows = report[unit][str(threads)] = {}
            for case in cases:
                rows[case.model] = measure(case, subjects, threads, chosen.turns, Path(caches))
                what = f"{chosen.step}, {chosen.dtype}, {threads} thread(s)"
                sheet = table(what, rows, subjects, chosen.memory)
                report["tables"][str(threads)] = sheet.markdown()
                chosen.json.parent.mkdir(parents=True, exist_ok=True)
                chosen.json.write_text(json.dumps(report, indent=1) + "\n")
            sheet.print(console)
    console.print(f"written: {chosen.json}")
    found = (r for rows in report[unit].values() for r in rows.values())
    return int(any(isinstance(v, str) for r in found for v in r.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
