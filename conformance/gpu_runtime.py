"""Sections of `gpu.py` about the runtime: users' kernels, graphs, devices, memory, memcheck."""

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import torch
import triton
from gpu_kernels import LAUNCHES, Launching

from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_runtime.accelerator import AcceleratorDevice
from gyrator_runtime.profile import time_callable

Row = dict[str, object]
D = "cuda"
SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")


class Clock(Protocol):
    """Says when time is up."""

    @property
    def left(self) -> float:
        """Seconds left."""
        ...


def attempt(row: Row, body: Callable[[], str]) -> Row:
    """Run a check; note what it says is wrong, or what it raises."""
    start = time.perf_counter()
    try:
        torch._dynamo.reset()
        wrong = body()
    except Exception as error:
        wrong = f"{type(error).__name__}: {str(error)[:900]}"
        row["trace"] = traceback.format_exc()[-1500:]
    if wrong:
        row["wrong"] = wrong
    row["seconds"] = round(time.perf_counter() - start, 2)
    return row


def differ(got: Any, want: Any, tolerance: float = 1e-5) -> str:
    """Return how results differ; empty where they are close."""
    try:
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        return str(error)[:500]
    return ""


def user_kernels(clock: Clock, only: str) -> Iterator[Row]:
    """Triton kernels that the user wrote, in three host languages, with and without graphs."""
    for case in LAUNCHES:
        for wrapper in case.wrappers:
            for graphs in (False, True) if wrapper == "python" else (False,):
                if clock.left < 10 or only not in case.name:
                    continue
                row: Row = {"case": case.name, "wrapper": wrapper, "graphs": graphs}
                yield attempt(row, lambda c=case, r=row: _launched(c, r))


def _launched(case: Launching, row: Row) -> str:
    records: list[GraphRecord] = []
    options = {"strict": True, "wrapper": row["wrapper"], "device_graphs": row["graphs"]}
    with Session(options=options, observer=records.append) as session:
        call = torch.compile(case.run, backend=session.backend, dynamic=case.dynamic or None)
        wrong = ""
        for size in case.sizes:
            for _ in range(4 if row["graphs"] else 2):
                x = torch.randn(size, device=D, requires_grad=case.training)
                twin = x.detach().clone().requires_grad_(case.training)
                got, want = call(x), copy_context().run(_eager, case, twin)
                wrong = wrong or differ(got, want) or differ(x, twin)
                if case.training:
                    pairs = ((got, x), (want, twin))
                    gradients = [torch.autograd.grad(r[0], v)[0] for r, v in pairs]
                    wrong = wrong or differ(*gradients)
    row["externs"] = sorted({str(e.target) for r in records for e in r.externs})
    launches = "\n".join(r.host_text for r in records)
    if not any(
        word in launches
        for word in ("rt.triton(", "triton_kernel_wrapper_mutation(", "launch_user(")
    ):
        wrong = wrong or "no kernel of the user's is launched"
    return wrong


def _eager(case: Launching, x: torch.Tensor) -> list[torch.Tensor]:
    """Run a program as it is; unlike ours, it has to be told where kernels get memory from."""
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=D))
    return case.run(x)


def partitions(clock: Clock, only: str) -> Iterator[Row]:
    """What cannot be captured stays outside; results of several calls stay apart; time."""
    w = torch.randn(256, 256, device=D, requires_grad=True)

    def waits(x: torch.Tensor) -> list[torch.Tensor]:
        y = x
        for _ in range(6):
            y = torch.relu(y @ w).sin()
        places = torch.nonzero(y.sum(1) > 1)
        for _ in range(6):
            y = (y @ w).cos()
        return [y.sum(), places.sum(), y]

    def visits(x: torch.Tensor) -> list[torch.Tensor]:
        y = x
        for _ in range(6):
            y = torch.relu(y @ w).sin()
        on_host = y.sum(0).cpu().cumsum(0)
        for _ in range(6):
            y = (y @ w).cos()
        return [y.sum() + on_host.to(D).mean(), on_host, y]

    for name, function in (("waits for values", waits), ("visits the host", visits)):
        for training in (False, True):
            if clock.left < 20 or only not in name:
                continue
            row: Row = {"case": name, "training": training}
            yield attempt(row, lambda f=function, r=row: _partitioned(f, w, r))
    if clock.left > 20 and only in "random numbers":
        yield attempt({"case": "random numbers"}, _fresh_numbers)


def _fresh_numbers() -> str:
    """Each replay draws numbers of its own, and the same ones after the same seed."""

    def drop(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True)

    x = torch.ones(10000, device=D)
    with Session(options={"strict": True}) as session:
        call = torch.compile(drop, backend=session.backend, mode="reduce-overhead")
        for _ in range(3):
            call(x)
        draws = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            draws += [call(x).clone() for _ in range(2)]
    if not torch.equal(torch.stack(draws[:2]), torch.stack(draws[2:4])):
        return "the same seed gives other numbers"
    others = [(0, 1), (0, 4), (1, 5), (4, 5)]
    if any(torch.equal(draws[a], draws[b]) for a, b in others):
        return "a replay repeats the numbers of another"
    return "" if all(abs(float(d.mean()) - 1) < 0.1 for d in draws) else "not half is dropped"


def _partitioned(
    function: Callable[[torch.Tensor], list[torch.Tensor]], w: torch.Tensor, row: Row
) -> str:
    records: list[GraphRecord] = []
    before = torch._dynamo.config.capture_dynamic_output_shape_ops
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        with Session(options={"strict": True}, observer=records.append) as session:
            call = torch.compile(function, backend=session.backend, mode="reduce-overhead")
            wrong = ""
            held: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
            with torch.set_grad_enabled(bool(row["training"])):
                for _ in range(10):
                    x = torch.randn(64, 256, device=D)
                    held = [*held[-2:], (call(x), [r.detach().clone() for r in call(x)])]
                    eager = function(x)
                    wrong = wrong or differ(held[-1][0], eager, 2e-3)
                    for got, want in held:
                        wrong = wrong or differ(got, want, 0.0)
                    if row["training"]:
                        pair = [torch.autograd.grad(r[0], w)[0] for r in (held[-1][0], eager)]
                        wrong = wrong or differ(*pair, 2e-2)
                held.clear()
                x = torch.randn(64, 256, device=D)
                row["graphs_ms"] = _milliseconds(lambda: call(x))
                plain = torch.compile(function, backend=session.backend)
                torch._dynamo.reset()
                row["plain_ms"] = _milliseconds(lambda: plain(x))
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = before
    row["partitions"] = [r.host_text.count(".call_partition(") for r in records]
    if not row["partitions"] or max(row["partitions"]) == 0:
        wrong = wrong or "there is no partition"
    return wrong


def _milliseconds(run: Callable[[], object]) -> float:
    taken = time_callable(run, AcceleratorDevice(NVIDIA_GPU.facts), warmup=5)
    return round(1e3 * taken.median, 4)


def devices(clock: Clock, only: str) -> Iterator[Row]:
    """Programs for a device that is not the current one, and for two at once."""
    if torch.cuda.device_count() < 2:
        yield {"case": "several devices", "skipped": "this machine has one"}
        return

    def single(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x @ x).relu() + 1, x.softmax(-1)]

    def both(x: torch.Tensor) -> list[torch.Tensor]:
        y = (x @ x).sin() + 1
        z = y.to(f"cuda:{1 - x.get_device()}")
        z = (z @ z).cos() * 2
        return [y * 2, z, z.to(x.device) + y]

    forms = (("python", False), ("python", True), ("cpp", False))
    programs = (("one device", single), ("two devices", both))
    for (current, place), (name, function) in product(product((0, 1), (0, 1)), programs):
        for wrapper, graphs in forms:
            if clock.left < 10 or only not in name:
                continue
            row: Row = {"case": name, "current": current, "on": place, "graphs": graphs}
            row["wrapper"] = wrapper
            yield attempt(row, lambda f=function, r=row: _elsewhere(f, r))


def _elsewhere(function: Callable[[torch.Tensor], list[torch.Tensor]], row: Row) -> str:
    wrong = ""
    with torch.cuda.device(int(str(row["current"]))):
        options = {"strict": True, "device_graphs": row["graphs"], "wrapper": row["wrapper"]}
        with Session(options=options) as session, torch.no_grad():
            call = torch.compile(function, backend=session.backend)
            for _ in range(5):
                x = torch.randn(64, 64, device=f"cuda:{row['on']}")
                wrong = wrong or differ(call(x), function(x), 1e-3)
                if torch.cuda.current_device() != row["current"]:
                    wrong = wrong or f"device {torch.cuda.current_device()} is current afterwards"
    return wrong


_DROP = """
import gc, json, sys, time, torch, gyrator
seconds, cycles = float(sys.argv[1]), int(sys.argv[2])
x = torch.randn(64, 64, device="cuda")
start, held, done = time.monotonic(), [], 0
for n in range(cycles):
    if time.monotonic() - start > seconds:
        break
    torch._dynamo.reset()
    with gyrator.Session(options={"strict": True, "cache": n % 20 != 0}) as session:
        f = torch.compile(lambda x: (x @ x).relu() * 2, backend=session.backend,
                          options={"device_graphs": bool(n % 2)})
        for _ in range(3):
            f(x)
    del f, session
    done = n + 1
    if n % 10 == 9:
        gc.collect()
        torch.cuda.synchronize()
        held.append((torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()))
free = [f for f, _ in held]
used = [u for _, u in held]
flat = free[2] - min(free[-3:]) <= 2 * 2**20 and used[-1] <= used[2]
print(json.dumps({"cycles": done, "flat": flat, "free": free[2::20], "used": used[2::20]}))
"""


def drops(clock: Clock, only: str) -> Iterator[Row]:
    """A thousand programs, made, run and dropped, leave the device's memory as it was."""
    if clock.left < 40 or only not in "drops":
        return
    row: Row = {"case": "a thousand programs"}
    limit = min(150.0, clock.left - 20)

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-c", _DROP, str(limit), "1000"],
            capture_output=True, text=True, timeout=limit + 60, check=False,
        )  # fmt: skip
        if done.returncode:
            return done.stderr[-1200:]
        row.update(json.loads(done.stdout.splitlines()[-1]))
        return "" if row["flat"] else "the device's memory grows"

    yield attempt(row, run)


def memcheck(clock: Clock, only: str) -> Iterator[Row]:
    """The kernels' accesses, watched by compute-sanitizer, where that is installed.

    Once those of whole programs, `gpu_programs`, once the fixed corpus, `gpu_corpus`.
    """
    tool = next((found for t in SANITIZERS if (found := shutil.which(t))), None)
    if tool is None:
        yield {"case": "memcheck", "skipped": "compute-sanitizer is not installed"}
        return
    for name in ("programs", "corpus"):
        if clock.left < 60 or only not in f"memcheck of {name}":
            continue
        row: Row = {"case": f"memcheck of {name}", "tool": tool}
        script = Path(__file__).with_name(f"gpu_{name}.py")
        yield attempt(row, partial(_watched, row, tool, script, clock))


def _watched(row: Row, tool: str, script: Path, clock: Clock) -> str:
    command = [sys.executable, str(script)]
    # Kernels are in the cache then: under the tool, each process that builds them starts slowly.
    subprocess.run(command, capture_output=True, timeout=clock.left, check=False)
    try:
        # The tool waits for the first use of CUDA, before which PyTorch is imported.
        done = subprocess.run(
            [tool, "--tool", "memcheck", "--target-processes", "application-only",
             "--launch-timeout", "100", "--error-exitcode", "9", *command],
            capture_output=True, text=True, timeout=min(200.0, clock.left), check=False,
            env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        written = (late.stdout or b"")[-700:]
        return f"not done in {late.timeout:.0f} s; what it wrote ends: {written!r}"
    finished = [line for line in done.stdout.splitlines() if line.endswith(" done")]
    row["finished"] = len(finished)
    row["said"] = [s for s in done.stdout.splitlines() if "ERROR SUMMARY" in s]
    return "" if done.returncode == 0 and finished else (done.stdout + done.stderr)[-1500:]
