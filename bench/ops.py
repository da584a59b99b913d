"""One operation at a time: where is Gyrator behind TorchInductor, or behind eager?

    nox -s bench -- ops [--only sort,gelu] [--rounds N] [--json FILE]
    python bench/ops.py --device cuda [--only sort,gelu] [--sizes model] [--jobs N] [--json FILE]

A survey, wide and shallow, all compilers in turns. A ratio below 1 says that Gyrator is slower.

On the CPU: small inputs, one thread, one process. Eager's times have no guards in them, which cost
the others 50 to 200 us a call; "guarded" is eager mode behind Dynamo's guards.

On a GPU: three sizes, two types, with and without gradients. Times are of the device, of calls that
are replayed from a device graph (or what the profiler saw, where a call waits for the device). The
table has the share of the machine that Gyrator reaches: bytes a second over a large copy's, or
operations a second over a large product's, whichever is more.
"""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _clock import geomean, interleave
from _environment import environment
from _gpu_survey import add_arguments, survey
from _ops import OPS, Op
from _overhead import twin
from _subject import BACKENDS, compiled
from _tables import Sheet
from rich.console import Console
from rich.progress import track

GUARDED = "guarded"
SUBJECTS = (*BACKENDS, GUARDED)

BATCH_SECONDS = 0.02
"""A round of one compiler lasts about so long."""

_PEERS = ("inductor", "eager", GUARDED)


def main(arguments: list[str]) -> int:
    """Measure, print a table, and write it with its numbers."""
    parser = argparse.ArgumentParser("bench/ops.py", description=__doc__)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    add_arguments(parser)
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda":
        return survey(chosen)
    torch.set_num_threads(1)
    parts = chosen.only.split(",")
    raw = {
        op.name: measure(op, chosen.rounds)
        for op in track([o for o in OPS if any(p in o.name for p in parts)], "operations")
    }
    sheet = Sheet(
        "Operations, us a call, thread time",
        ("operation", *SUBJECTS, *(f"{peer}/gyrator" for peer in _PEERS)),
    )
    for name, times in sorted(raw.items(), key=lambda item: _gain(item[1])):
        cells = [f"{times[subject] * 1e6:.1f}" for subject in SUBJECTS]
        ratios = (times[peer] / times["gyrator"] for peer in _PEERS)
        sheet.rows.append((name, *cells, *(f"{r:.2f}" for r in ratios)))
    sheet.summary.append(
        f"geometric mean of inductor/gyrator {geomean(list(map(_gain, raw.values()))):.2f}"
    )
    sheet.print(Console(width=140))
    if chosen.json is not None:
        report = {"environment": environment(), "arguments": arguments,
                  "table": sheet.markdown(), "seconds": raw}  # fmt: skip
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def measure(op: Op, rounds: int) -> dict[str, float]:
    """Return seconds a call with each compiler, gradients included where the op has them."""
    torch._dynamo.reset()
    inputs = [make() for make in op.inputs]
    trained = [x.requires_grad_() for x in inputs if op.trained and x.is_floating_point()]
    runs: dict[str, Callable[[], Any]] = {}
    for name in SUBJECTS:
        function = twin(op.run)
        if name == GUARDED:
            function = torch.compile(function, backend="eager")
        else:
            function = compiled(function, name, [])
        call = partial(function, *inputs)
        runs[name] = partial(_gradients, call, trained) if trained else call
    with torch.set_grad_enabled(bool(trained)):
        once = interleave(runs, 1, warm=3)
        batch = {n: max(1, int(BATCH_SECONDS / t["thread_min"])) for n, t in once.items()}
        found = interleave(runs, rounds, batch, warm=1)
    return {n: t["thread_median"] for n, t in found.items()}


def _gradients(call: Callable[[], Any], inputs: list[torch.Tensor]) -> Any:
    return torch.autograd.grad(call(), inputs)


def _gain(times: dict[str, float]) -> float:
    return times["inductor"] / times["gyrator"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
