"""Models on a GPU in bfloat16 against eager and TorchInductor, in one interleaved run.

    python bench/gpu.py --out FOLDER [--seconds 300] [--only NAME] [--mode MODE]

Models have their published sizes and random weights. Compile times are of the first call with empty
caches, in this order: TorchInductor, then Gyrator. Run times are medians of rounds in which all
take turns; `kernels` is the time in which the profiler saw the device busy. `gyrator_table` has a
row for each kernel that we wrote: launches, microseconds, share of the sum of all, and the bytes it
must move a second as a share of what a copy moves.
"""

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
import transformers
import triton
from _clock import interleave
from _gpu_models import DEVICE, MODELS, Inputs
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from triton.testing import do_bench

from gyrator import Session
from gyrator.reports.records import GraphRecord

Run = Callable[[Inputs], torch.Tensor]
Row = dict[str, Any]
ROUNDS = 12
LEAST_SECONDS = 30.0
"""What must be left of the time to start with another model."""


def prepared(name: str, training: bool) -> tuple[torch.nn.Module, Inputs, Row]:
    """Return a model in bfloat16 with its inputs, and the row that names them."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.bfloat16().to(DEVICE).train(training)
    inputs = {k: v.bfloat16() if v.is_floating_point() else v for k, v in inputs.items()}
    return model, inputs, {"model": name, "step": "training" if training else "inference"}


def step_of(model: torch.nn.Module, call: Callable[..., Any], training: bool) -> Run:
    """Return what is timed: a forward pass, or forward and backward; it gives the logits."""

    def infer(inputs: Inputs) -> Any:
        with torch.no_grad():
            return call(**inputs).logits

    def train(inputs: Inputs) -> Any:
        model.zero_grad(set_to_none=True)
        result = call(**inputs)
        result.loss.backward()
        return result.logits.detach()

    return train if training else infer


class Contest:
    """Ways to run one model: compiled one after the other, then timed in turns.

    Its `row` gets, for each way, `compile_s`, `difference` (of the logits from eager's, relative),
    `ms`, `kernels_ms` (in which the device was busy), `longest` (kernels by their time) and
    `peak_mb`, the most memory of a step beyond weights and inputs.
    """

    def __init__(self, name: str, training: bool) -> None:
        self.model, self.inputs, self.row = prepared(name, training)
        self.training = training
        self.runs = {"eager": step_of(self.model, self.model, training)}
        self.models = {"eager": self.model}
        self._exact = self.runs["eager"](self.inputs).double()

    def compile(self, way: str, backend: Any, mode: str | None = None) -> None:
        """Compile a copy of the model."""
        torch._dynamo.reset()
        twin = deepcopy(self.model)
        run = step_of(twin, torch.compile(twin, backend=backend, mode=mode), self.training)
        start = time.perf_counter()
        result = run(self.inputs)
        torch.cuda.synchronize()
        self.row[f"{way}_compile_s"] = round(time.perf_counter() - start, 2)
        off = (result.double() - self._exact).norm() / self._exact.norm()
        self.row[f"{way}_difference"] = float(off)
        self.runs[way] = run
        self.models[way] = twin

    def time(self, longest: int = 16) -> dict[str, "Events"]:
        """Time all ways; return what each but eager did on the device."""
        times = interleave({way: partial(self._once, way) for way in self.runs}, ROUNDS, warm=3)
        found: dict[str, Events] = {}
        for way, taken in times.items():
            self.row[f"{way}_ms"] = round(1e3 * taken["wall_median"], 3)
            self.row[f"{way}_peak_mb"] = round(self._peak(way) / 1e6, 1)
            if way != "eager":
                events, busy = device_events(self.runs[way], self.inputs)
                found[way] = events
                self.row[f"{way}_kernels_ms"] = round(busy / 1e3, 3)
                rows = [[key[:60], count, round(us)] for key, count, us in events[:longest]]
                self.row[f"{way}_longest"] = rows
        return found

    def _peak(self, way: str) -> int:
        """Return the most bytes of a step beyond what there is between steps, without gradients."""
        self.models[way].zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self._once(way)
        return torch.cuda.max_memory_allocated() - before

    def _once(self, way: str) -> None:
        self.runs[way](self.inputs)
        torch.cuda.synchronize()


Events = list[tuple[str, int, float]]
"""Of each kernel: name, launches, microseconds of all of them."""


def device_events(run: Callable[..., Any], inputs: Inputs) -> tuple[Events, float]:
    """Return what one run did on the device, what took longest first, and the microseconds in which
    the device was busy, where launches that overlap count once."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run(inputs)
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda e: -e.device_time_total)
    ranges = (e.time_range for e in found.events() if e.device_type == DeviceType.CUDA)
    busy = covered((r.start, r.end) for r in ranges)
    return [(e.key, e.count, e.device_time_total) for e in rows], busy


def covered(ranges: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of ranges, each from a start to an end."""
    total, last = 0.0, -math.inf
    for start, end in sorted(ranges):
        total += max(end - max(start, last), 0.0)
        last = max(last, end)
    return total


def copy_rate() -> float:
    """Return the bytes a second that a large copy reads and writes."""
    a = torch.empty(1 << 26, device=DEVICE)
    b = torch.empty_like(a)
    return 2e3 * a.numel() * a.element_size() / float(do_bench(lambda: b.copy_(a)))


def kernel_table(events: Events, records: list[GraphRecord], copied: float) -> list[list[object]]:
    """Return a row for each kernel of ours: name, launches, microseconds, share of the microseconds
    of all, and its bytes a second over `copied`."""
    moved = {k.name: k.bytes_moved for r in records for k in r.kernels}
    total = sum(us for _, _, us in events)
    return [
        [name, n, round(us, 1), round(us / total, 4), round(1e6 * moved[name] * n / us / copied, 3)]
        for name, n, us in events
        if name in moved and us
    ]


def measure(name: str, training: bool, copied: float, mode: str | None) -> Row:
    """Compile and time one model. `copied`: bytes a second of a copy."""
    records: list[GraphRecord] = []
    with Session(options={"strict": True}, observer=records.append) as session:
        contest = Contest(name, training)
        contest.compile("inductor", "inductor", mode)
        contest.compile("gyrator", session.backend, mode)
        events = contest.time()
        contest.row["gyrator_table"] = kernel_table(events["gyrator"], records, copied)
    return contest.row


def facts() -> Row:
    """Return the device and the versions."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def collect(
    cases: Iterable[tuple[str, bool]], one: Callable[[str, bool], Row], head: Row, path: Path,
    seconds: float,
) -> list[Row]:  # fmt: skip
    """Measure models (name, training) while `seconds` last; print rows, and store them in `path`.

    A model that fails has `wrong` in its row.
    """
    end = time.monotonic() + seconds
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name, training in cases:
        if time.monotonic() > end - LEAST_SECONDS:
            break
        try:
            row = one(name, training)
        except Exception as error:
            row = {"model": name, "wrong": f"{type(error).__name__}: {str(error)[:600]}"}
        rows.append(row)
        shown = {k: v for k, v in row.items() if not k.endswith(("longest", "table"))}
        print(json.dumps(shown), flush=True)
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        path.write_text(json.dumps({"facts": head, "rows": rows}, indent=1))
    return rows


def command_line(text: str | None, seconds: float) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command line."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--only", default="")
    return parser


def main() -> int:
    """Measure every model; print and store a table."""
    parser = command_line(__doc__, 300)
    parser.add_argument("--mode", help="of torch.compile, for TorchInductor and Gyrator")
    args = parser.parse_args()
    copied = copy_rate()
    cases = [(name, t) for name in MODELS for t in (False, True) if args.only in name]
    head = facts() | {"copy_bytes_per_second": copied}
    one = partial(measure, copied=copied, mode=args.mode)
    rows = collect(cases, one, head, args.out / "bench_gpu.json", args.seconds)
    good = [r for r in rows if "wrong" not in r]
    for what in ("ms", "kernels_ms", "peak_mb", "compile_s"):
        if good:
            ratio = geometric_mean(r[f"inductor_{what}"] / r[f"gyrator_{what}"] for r in good)
            print(f"TorchInductor's {what} over Gyrator's, geometric mean: {ratio:.2f}")
    return int(len(good) < len(cases))


if __name__ == "__main__":
    sys.exit(main())
