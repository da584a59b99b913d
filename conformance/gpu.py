"""Gyrator on a real GPU: right results, compared with eager, in bounded time; JSON as it goes.

    python conformance/gpu.py --out FOLDER [--seconds 400] [--sections ops models ...] [--only NAME]

Every case is compiled in strict mode, so that nothing falls back to eager unseen. A result may be
as far from the float64 result as twice eager's distance, and never needs to be nearer than rounding
once. Integer results must be equal.
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
import triton
from attrs import evolve
from gpu_cases import CASES, Case
from gpu_packages import packages
from gpu_runtime import devices, drops, memcheck, partitions, user_kernels
from gpu_tuning import precision, tuning
from transformers import GPT2Config, GPT2LMHeadModel
from triton.testing import do_bench

from gyrator.demo.models import WORKLOADS, Workload, inference, training_step
from gyrator.reports.accuracy import DRAWS, allowed_block_error, block_errors, worst_error
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_runtime.accelerator import AcceleratorDevice
from gyrator_runtime.profile import compare as compare_times

Row = dict[str, object]
DEVICE = "cuda"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Clock:
    """Says when time is up."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left."""
        return self._end - time.monotonic()


def exact_of(value: object) -> object:
    """Return tensors in float64."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return value


def compare(
    got: list[torch.Tensor], eager: list[torch.Tensor], exact: list[torch.Tensor]
) -> dict[tuple[int, torch.dtype], tuple[float, float]]:
    """Return the relative errors of floating-point results, and eager's, by position and dtype.

    Raises:
        ValueError: if results differ from eager's in their number, form or integers, or in where
            they are finite.
    """
    if len(got) != len(eager):
        raise ValueError(f"{len(got)} results, eager has {len(eager)}")
    errors = {}
    for k, (g, e, x) in enumerate(zip(got, eager, exact, strict=True)):
        if g.dtype != e.dtype or g.shape != e.shape or g.device != e.device:
            form = f"{g.dtype} {tuple(g.shape)} {g.device}, eager {e.dtype} {e.shape}"
            raise ValueError(f"result {k}: {form}")
        if g.stride() != e.stride() and g.numel() > 1:
            raise ValueError(f"result {k}: strides {g.stride()}, eager {e.stride()}")
        if e.is_floating_point():
            if not torch.equal(torch.isfinite(g), torch.isfinite(e)):
                raise ValueError(f"result {k}: not finite where eager is, or the other way round")
            finite = torch.isfinite(e) & torch.isfinite(x)
            ours, theirs, true = (torch.where(finite, t, 0) for t in (g, e, x.double()))
            errors[k, e.dtype] = worst_error([ours], [true]), worst_error([theirs], [true])
        elif not torch.equal(g, e):
            raise ValueError(f"result {k}: {int((g != e).sum())} of {g.numel()} differ")
    return errors


def flat(result: object) -> list[torch.Tensor]:
    """Return the tensors of a result."""
    if isinstance(result, torch.Tensor):
        return [result.detach()]
    if isinstance(result, (tuple, list)):
        return [t for r in result for t in flat(r)]
    return []


def errors_of(
    case: Case, compiled: Callable[..., object], inputs: Any
) -> dict[tuple[int, torch.dtype], tuple[float, float]]:
    """Return the errors of results, and of what was written to inputs; see `compare`."""
    twin = [clone(v) for v in inputs]
    exact = [exact_of(clone(v)) for v in inputs]
    with torch.no_grad():
        got, eager = flat(compiled(*inputs)), flat(case.run(*twin))
        reference = flat(case.run(*exact)) if case.exact else eager
    written = [flat(list(v)) for v in (inputs, twin, exact)]
    return compare(got + written[0], eager + written[1], reference + written[2])


def judge(case: Case, compiled: Callable[..., object], make: Callable[[], Any]) -> None:
    """Compare results on inputs, and on several more draws of them if errors exceed their bounds.

    The means decide, however large one error is: that of a single number is chance.

    Raises:
        ValueError: if they differ, or if errors are too large.
    """
    draws = [errors_of(case, compiled, make())]
    if all(a <= allowed_block_error(b, dtype) for (_, dtype), (a, b) in draws[0].items()):
        return
    draws += [errors_of(case, compiled, make()) for _ in range(DRAWS - 1)]
    for k, dtype in draws[0]:
        ours, eager, bound = block_errors((d[k, dtype] for d in draws), dtype, math.inf)
        if ours > bound:
            raise ValueError(f"result {k}: error {ours:.2e}, eager {eager:.2e}")


def check_case(case: Case, dtype: torch.dtype) -> Row:
    """Compile and compare one case on fresh inputs."""
    records: list[GraphRecord] = []
    start = time.perf_counter()
    row: Row = {"case": case.name, "dtype": str(dtype).removeprefix("torch.")}
    try:
        torch.manual_seed(7)
        with Session(options={"strict": True, **case.options}, observer=records.append) as session:
            torch._dynamo.reset()
            dynamic = True if case.dynamic else None
            compiled = torch.compile(case.run, backend=session.backend, dynamic=dynamic)
            for make in (case.inputs, *case.more):
                judge(case, compiled, partial(make, dtype))
    except Exception as error:
        row["wrong"] = f"{type(error).__name__}: {str(error)[:900]}"
        row["trace"] = traceback.format_exc()[-1500:]
    row["kernels"] = sum(len(r.kernels) for r in records)
    row["externs"] = sorted({str(e.target) for r in records for e in r.externs})
    row["seconds"] = round(time.perf_counter() - start, 3)
    return row


def clone(value: object) -> object:
    """Return a tensor of the same layout with its own memory."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    made = torch.empty(0, dtype=value.dtype, device=value.device)
    return made.set_(storage, value.storage_offset(), value.shape, value.stride())


def ops(clock: Clock, only: str) -> Iterator[Row]:
    """Operation by operation."""
    for case in CASES:
        if only and only not in case.name:
            continue
        for name in case.dtypes:
            if clock.left < 5:
                return
            yield check_case(case, DTYPES[name])


LANGUAGES = (
    "unary", "reductions", "norms", "views", "embedding", "scatters", "host scalar", "mutation",
    "dynamic sizes", "matmul", "attention", "convolution",
)  # fmt: skip
"""Cases that are also compiled with host programs in other languages than Python."""


def languages(clock: Clock, only: str) -> Iterator[Row]:
    """Host programs as FX graphs and in C++."""
    for case in CASES:
        for wrapper in ("fx", "cpp"):
            if case.name in LANGUAGES and only in case.name and clock.left > 10:
                chosen = evolve(case, options={**case.options, "wrapper": wrapper})
                yield check_case(chosen, DTYPES[case.dtypes[0]]) | {"wrapper": wrapper}


def subprocess_case(text: str, expected: str) -> Row:
    """Run a text in a process of its own, which it may leave without a usable device."""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False
    )
    row: Row = {"case": "subprocess"}
    if expected not in done.stdout + done.stderr:
        row["wrong"] = (done.stdout + done.stderr)[-1500:]
    return row


_ASSERT = """
import torch
f = torch.compile(lambda x, i: x[i] + 1, backend="gyrator", options={"strict": True})
x = torch.randn(10, device="cuda")
print(f(x, torch.tensor([1, -10], device="cuda")))
try:
    f(x, torch.tensor([1, 10], device="cuda"))
    torch.cuda.synchronize()
except RuntimeError as error:
    print("RAISED", "device-side assert" in str(error))
"""
_DROP = """
import gc, torch, gyrator
x = torch.randn(1000, device="cuda")
held = []
for n in range(60):
    torch._dynamo.reset()
    with gyrator.Session(options={"strict": True, "cache": False}) as session:
        f = torch.compile(lambda x: x * 2 + n, backend=session.backend)
        f(x)
    del f
    gc.collect()
    torch.cuda.synchronize()
    held.append(torch.cuda.mem_get_info()[0])
print("FLAT", held[20] - held[-1] <= 2 * 2**20, held[5], held[20], held[-1])
"""


def processes(clock: Clock, only: str) -> Iterator[Row]:
    """What needs a process of its own."""
    for name, text, expected in (
        ("device assert", _ASSERT, "RAISED True"),
        ("memory of dropped programs", _DROP, "FLAT True"),
    ):
        if clock.left > 60 and only in name:
            yield subprocess_case(text, expected) | {"case": name}


def random(clock: Clock, only: str) -> Iterator[Row]:
    """Random numbers of kernels are those that the same seeds give on the host."""

    def draw(x: torch.Tensor) -> list[torch.Tensor]:
        noise = torch.rand(1000, device=x.device), torch.randn(3000, device=x.device)
        return [*noise, torch.randint(0, 1000, (2000,), device=x.device)]

    row: Row = {"case": "random"}
    with Session(options={"strict": True}) as session:
        compiled = torch.compile(draw, backend=session.backend)
        compiled(torch.ones(2, device=DEVICE))
        torch.manual_seed(5)
        found = [t.cpu() for t in compiled(torch.ones(2, device=DEVICE))]
    torch.manual_seed(5)
    seeds = torch.ops.gyrator.philox_seed(3, device=torch.device(DEVICE)).cpu()
    for k, (kind, low, high) in enumerate((("rand", 0, 1), ("randn", 0, 1), ("randint", 0, 1000))):
        got = found[k]
        want = torch.ops.gyrator.philox(
            list(got.shape), seeds, k, kind, low, high, dtype=got.dtype, device=torch.device("cpu")
        )
        off = float((got.double() - want.double()).abs().max())
        row[kind] = off
        if off > (1e-5 if kind == "randn" else 0.0):
            row["wrong"] = f"{kind}: {got[:4]}, the host gives {want[:4]}"
    yield row


def models(clock: Clock, only: str) -> Iterator[Row]:
    """The demo's models, inference and training, against eager in float64."""
    for workload in WORKLOADS.values():
        for dtype in (torch.float32, torch.bfloat16):
            for step, runner in (("inference", inference), ("training", training_step)):
                if clock.left < 30 or only not in workload.name:
                    continue
                torch.manual_seed(3)
                torch._dynamo.reset()
                row: Row = {"model": workload.name, "dtype": str(dtype), "step": step}
                records: list[GraphRecord] = []
                try:
                    model = workload.build(0.0).to(dtype).to(DEVICE).train(step == "training")
                    inputs = {
                        k: v.to(DEVICE) for k, v in workload.inputs(torch.Generator()).items()
                    }
                    narrow = {
                        k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()
                    }
                    wide = {
                        k: v.double() if v.is_floating_point() else v for k, v in inputs.items()
                    }
                    exact_model = deepcopy(model).double()
                    exact = runner(exact_model, exact_model)(wide)
                    twin = deepcopy(model)
                    eager = runner(model, model)
                    with Session(options={"strict": True}, observer=records.append) as session:
                        call = torch.compile(twin, backend=session.backend)
                        compiled = runner(twin, call)
                        start = time.perf_counter()
                        got = compiled(narrow)
                        torch.cuda.synchronize()
                        row["compile_s"] = round(time.perf_counter() - start, 2)
                    eager_error = worst_error(eager(narrow), exact)
                    error = worst_error(got, exact)
                    row |= {"error": error, "eager_error": eager_error}
                    if error > max(allowed_block_error(eager_error, dtype), 1.3 * eager_error):
                        row["wrong"] = f"error {error:.2e}, eager {eager_error:.2e}"
                    row["stages"] = [dict(r.seconds) for r in records]
                    row["eager_ms"], row["gyrator_ms"] = interleaved((eager, compiled), narrow)
                except Exception as error_:
                    row["wrong"] = f"{type(error_).__name__}: {str(error_)[:900]}"
                    row["trace"] = traceback.format_exc()[-1500:]
                row["kernels"] = sum(len(r.kernels) for r in records)
                row["externs"] = sorted({str(e.target) for r in records for e in r.externs})
                yield row


def interleaved(runs: tuple[Callable[..., object], ...], inputs: object) -> list[float]:
    """Return each run's median milliseconds, in turns."""
    named = {str(k): partial(run, inputs) for k, run in enumerate(runs)}
    times = compare_times(named, AcceleratorDevice(NVIDIA_GPU.facts), samples=10)
    return [round(1e3 * t.median, 4) for t in times.values()]


def benchmark(clock: Clock, only: str) -> Iterator[Row]:
    """Large models against TorchInductor: `bench/gpu.py`, in a process of its own."""
    script = Path(__file__).parent.parent / "bench" / "gpu.py"
    with TemporaryDirectory() as folder:
        limits = ["--seconds", str(max(0.0, clock.left)), "--only", only]
        command = [sys.executable, str(script), "--out", folder, *limits]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = Path(folder, "bench_gpu.json")
        if found.exists():
            yield from json.loads(found.read_text())["rows"]
        else:
            yield {"case": "benchmark", "wrong": done.stderr[-1500:]}


def _small_gpt2(_dropout: float) -> torch.nn.Module:
    config = GPT2Config(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model: torch.nn.Module = GPT2LMHeadModel(config)
    return model


def _one_text(generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 50257, (1, 128), generator=generator)
    return {"input_ids": ids, "labels": ids}


REPLAYED = (
    WORKLOADS["GPT-2"],
    Workload("GPT-2 of 12 layers, one text", _small_gpt2, _one_text),
    WORKLOADS["BERT"],
    WORKLOADS["ResNet-18"],
)
"""Models whose launches take the host longer than the device."""


def graphs(clock: Clock, only: str) -> Iterator[Row]:
    """Captured graphs: results of several calls stay apart, and time against TorchInductor."""
    for workload in REPLAYED:
        for step, runner in (("inference", inference), ("training", training_step)):
            if clock.left < 60 or only not in workload.name:
                continue
            row: Row = {"model": workload.name, "step": step}
            try:
                _replayed(workload, step, runner, row)
            except Exception as error:
                row["wrong"] = f"{type(error).__name__}: {str(error)[:900]}"
                row["trace"] = traceback.format_exc()[-1500:]
            yield row


def _replayed(workload: Workload, step: str, runner: Callable[..., Any], row: Row) -> None:
    torch.manual_seed(3)
    torch._dynamo.reset()
    model = workload.build(0.0).bfloat16().to(DEVICE).train(step == "training")
    draws = [
        {
            k: v.to(DEVICE, torch.bfloat16) if v.is_floating_point() else v.to(DEVICE)
            for k, v in workload.inputs(torch.Generator().manual_seed(n)).items()
        }
        for n in range(5)
    ]
    runs = [runner(model, model)]
    for options in ({"strict": True}, {"strict": True, "device_graphs": True}):
        twin = deepcopy(model)
        runs.append(runner(twin, torch.compile(twin, backend="gyrator", options=options)))
    worst = row["difference"] = _held_apart(runs[2], runs[1], draws)
    if worst > (0.0 if step == "inference" else 1e-2):
        row["wrong"] = f"a result differs from that without graphs by {worst:.2e}"
    torch._dynamo.reset()
    peer = deepcopy(model)
    peer_run = runner(peer, torch.compile(peer, mode="reduce-overhead"))

    def marked(inputs: object) -> object:
        torch.compiler.cudagraph_mark_step_begin()
        return peer_run(inputs)

    times = interleaved((*runs, marked), draws[0])
    names = ("eager_ms", "gyrator_ms", "gyrator_graph_ms", "inductor_graph_ms")
    row |= dict(zip(names, times, strict=True))


def _held_apart(
    run: Callable[..., list[torch.Tensor]], reference: Callable[..., list[torch.Tensor]],
    draws: list[dict[str, torch.Tensor]],
) -> float:  # fmt: skip
    """Return how far results that are held over several calls are from the reference's.

    Only loss and logits are compared: gradients belong to the parameters, and each step makes them
    anew.
    """
    kept = []
    for inputs in draws:
        got = run(inputs)
        kept.append((got[:2], [t.clone() for t in reference(inputs)[:2]]))
    torch.cuda.synchronize()
    return max(
        float((g.double() - w.double()).norm() / (w.double().norm() + 1e-30))
        for pair in kept
        for g, w in zip(*pair, strict=True)
    )


_OPERAND = 1 << 28
"""Bytes of a large tensor, in either type and in the copy that they are compared with."""


def _bandwidth_cases() -> Iterator[tuple[str, Callable[..., object], tuple[object, ...], int]]:
    rows = 1 << 14
    for dtype in (torch.float32, torch.bfloat16):
        size = dtype.itemsize
        n = _OPERAND // size
        name = str(dtype).removeprefix("torch.")
        x = torch.randn(n, device=DEVICE).to(dtype)
        y = torch.randn(n, device=DEVICE).to(dtype)
        m = x.view(rows, -1)
        w = torch.randn(m.shape[1], device=DEVICE).to(dtype)
        yield f"add {name}", lambda a, b: a + b * 2, (x, y), 3 * n * size
        yield f"gelu {name}", lambda a: F.gelu(a), (x,), 2 * n * size
        yield f"sum all {name}", lambda a: a.sum(), (x,), n * size
        yield f"row sum {name}", lambda a: a.sum(-1), (m,), n * size
        yield f"column sum {name}", lambda a: a.sum(0), (m,), n * size
        yield f"softmax {name}", lambda a: a.softmax(-1), (m,), 2 * n * size
        norm = (m.shape[1],)
        yield (
            f"layer_norm {name}",
            lambda a, b, norm=norm: F.layer_norm(a, norm, b),
            (m, w),
            2 * n * size,
        )
        yield (
            f"rms_norm {name}",
            lambda a, b, norm=norm: F.rms_norm(a, norm, b),
            (m, w),
            2 * n * size,
        )
        yield f"transpose {name}", lambda a: a.t().contiguous() + 1, (m,), 2 * n * size


def bandwidth(clock: Clock, only: str) -> Iterator[Row]:
    """Large kernels' bytes a second, against a copy and TorchInductor in the same run."""

    def seconds(run: Callable[[], object]) -> float:
        return float(do_bench(run, warmup=10, rep=40, return_mode="median")) / 1e3

    a = torch.randn(_OPERAND // 4, device=DEVICE)
    b = torch.empty_like(a)
    copied = 2 * _OPERAND / seconds(lambda: b.copy_(a))
    yield {"case": "copy", "bytes_per_second": copied}
    for name, run, inputs, moved in _bandwidth_cases():
        if clock.left < 10 or only not in name:
            continue
        row: Row = {"case": name}
        try:
            for column in ("gyrator", "gyrator_tuned", "inductor"):
                torch._dynamo.reset()
                options = None
                records: list[GraphRecord] = []
                if column == "inductor":
                    compiled = torch.compile(run)
                else:
                    options = {"strict": True, "max_autotune": column != "gyrator"}
                    with Session(options=options, observer=records.append) as session:
                        compiled = torch.compile(run, backend=session.backend)
                        compiled(*inputs)
                taken = seconds(lambda c=compiled, i=inputs: c(*i))
                row[column] = round(moved / taken / copied, 3)
        except Exception as error:
            row["wrong"] = f"{type(error).__name__}: {str(error)[:900]}"
        yield row


def overhead(clock: Clock, only: str) -> Iterator[Row]:
    """Host time of a call with k launches on tiny tensors, against TorchInductor."""
    for count in (1, 5, 20):
        if clock.left < 10 or only not in "overhead":
            return

        def run(x: torch.Tensor, m: torch.Tensor, count: int = count) -> torch.Tensor:
            for _ in range(count):
                x = torch.relu(x @ m)
            return x

        def many(x: torch.Tensor, _m: torch.Tensor, count: int = count) -> list[torch.Tensor]:
            return [x[: k + 2] * 2 for k in range(count)]

        x, m = torch.randn(32, 32, device=DEVICE), torch.randn(32, 32, device=DEVICE)
        for name, function in (("kernels", many), ("matmul and relu", run)):
            row: Row = {"case": name, "count": count}
            for backend in ("gyrator", "inductor", "eager"):
                torch._dynamo.reset()
                options = {"strict": True} if backend == "gyrator" else None
                with torch.no_grad():
                    call = torch.compile(function, backend=backend, options=options)
                    for _ in range(10):
                        call(x, m)
                    best = float("inf")
                    for _ in range(7):
                        torch.cuda.synchronize()
                        start = time.perf_counter()
                        for _ in range(100):
                            call(x, m)
                        best = min(best, time.perf_counter() - start)
                    row[f"{backend}_us"] = round(best * 1e4, 2)
            yield row


SECTIONS = {
    f.__name__: f
    for f in (
        ops, languages, random, processes, user_kernels, partitions, devices, models, graphs,
        bandwidth, overhead, precision, tuning, benchmark, drops, memcheck, packages,
    )
}  # fmt: skip


def main() -> int:
    """Run the sections; 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    clock = Clock(args.seconds)
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }
    result: dict[str, object] = {"facts": facts}
    print(facts, flush=True)
    wrong = 0
    for name in args.sections:
        rows: list[Row] = []
        result[name] = rows
        start = time.monotonic()
        for row in SECTIONS[name](clock, args.only):
            rows.append(row)
            if "wrong" in row:
                wrong += 1
            shown = {k: v for k, v in row.items() if k not in ("trace", "stages", "externs")}
            if "wrong" in row or name not in ("ops",):
                print(name, json.dumps(shown)[:700], flush=True)
            (args.out / "gpu.json").write_text(json.dumps(result, indent=1))
        print(f"{name}: {len(rows)} rows, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
