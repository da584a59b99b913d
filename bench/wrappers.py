"""What a call costs beyond Dynamo and AOTAutograd: Gyrator's host languages and TorchInductor's.

    nox -s bench -- wrappers [--rounds N] [--calls 1,5,20] [--json FILE]

The functions are those of the section `overhead` of bench/cpu.py. All compilers take turns in one
process; the baseline, a backend that returns ready tensors, is taken off every time. The ratio of a
host language is its overhead to that of the peer's wrapper of the same kind.
"""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _clock import interleave
from _environment import environment
from _overhead import SHAPES, prepared_outputs, twin
from _tables import Sheet
from rich.console import Console
from torch._dynamo.backends.common import aot_autograd

from gyrator import Session

KINDS = ("python", "cpp")


def main(arguments: list[str]) -> int:
    """Measure, print a table, and write it with its numbers if asked to."""
    parser = argparse.ArgumentParser("bench/wrappers.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", default="1,5,20", help="numbers of kernels in a function")
    parser.add_argument("--shapes", default=",".join(SHAPES), help=", ".join(SHAPES))
    parser.add_argument("--json", type=Path, help="write the numbers here")
    chosen = parser.parse_args(arguments)
    sheet = Sheet(
        "Overhead of a call in us, thread time, Dynamo and AOTAutograd taken off",
        ("function", "kernels", *(f"{k} {w}" for w in KINDS for k in ("gyrator", "inductor")),
         *(f"{w} ratio" for w in KINDS)),
    )  # fmt: skip
    raw: dict[str, Any] = {}
    for shape in chosen.shapes.split(","):
        for kernels in map(int, chosen.calls.split(",")):
            found = raw[f"{shape}, {kernels}"] = measure(shape, kernels, chosen.rounds)
            cells = [
                f"{found[f'{k} {w}'] * 1e6:.2f}" for w in KINDS for k in ("gyrator", "inductor")
            ]
            ratios = [found[f"gyrator {w}"] / found[f"inductor {w}"] for w in KINDS]
            sheet.rows.append((shape, str(kernels), *cells, *(f"{r:.2f}" for r in ratios)))
    sheet.print(Console(width=160))
    if chosen.json:
        report = {"environment": environment(), "arguments": arguments, "table": sheet.markdown(),
                  "seconds": raw}  # fmt: skip
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def measure(shape: str, kernels: int, rounds: int) -> dict[str, float]:
    """Return seconds a call of each compiler and wrapper, without the baseline's."""
    torch.set_num_threads(1)
    torch._dynamo.reset()
    function, inputs = SHAPES[shape](kernels)
    calls: dict[str, Callable[..., Any]] = {
        "baseline": torch.compile(
            twin(function), backend=aot_autograd(fw_compiler=prepared_outputs)
        )
    }
    for wrapper in KINDS:
        session = Session(options={"strict": True, "progress": False, "wrapper": wrapper})
        calls[f"gyrator {wrapper}"] = torch.compile(twin(function), backend=session.backend)
        options = {"cpp_wrapper": wrapper == "cpp"}
        calls[f"inductor {wrapper}"] = torch.compile(
            twin(function), backend="inductor", options=options
        )
    runs = {name: partial(call, *inputs) for name, call in calls.items()}
    with torch.no_grad():
        times = interleave(runs, rounds, batch=50)
    base = times["baseline"]["thread_min"]
    return {name: t["thread_min"] - base for name, t in times.items() if name != "baseline"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
