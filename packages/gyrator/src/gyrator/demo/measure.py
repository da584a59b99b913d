"""Measuring one workload: is it right, how fast is it, how long did compiling take."""

import time
from collections.abc import Callable
from copy import deepcopy
from statistics import median
from typing import Literal

import torch
from attrs import frozen
from torch import Tensor, nn

from gyrator.accuracy import allowed_error, worst_error
from gyrator.demo.models import Inputs, Workload, inference, training_step
from gyrator.records import GraphRecord
from gyrator.session import Session

Step = Literal["inference", "training"]
Run = Callable[[Inputs], list[Tensor]]


@frozen
class Row:
    """One line of the demo's table."""

    model: str
    step: Step
    dtype: torch.dtype
    eager_ms: float
    """Median of interleaved runs, like `gyrator_ms`."""
    gyrator_ms: float
    compile_s: float
    """The first call, tracing included."""
    eager_error: float
    """Relative error against float64, see `worst_error`."""
    gyrator_error: float
    records: tuple[GraphRecord, ...]

    @property
    def kernels(self) -> int:
        """Generated kernels."""
        return sum(len(r.kernels) for r in self.records)

    @property
    def externs(self) -> int:
        """Calls into ATen."""
        return sum(len(r.externs) for r in self.records)

    @property
    def right(self) -> bool:
        """Whether the error is within the bound: twice eager's in float32, eager's in bfloat16."""
        compiled = all(not r.fallback for r in self.records)
        return compiled and self.gyrator_error <= allowed_error(self.eager_error, self.dtype)


def measure(workload: Workload, step: Step, dtype: torch.dtype, repeat: int = 7) -> Row:
    """Compile a workload in a session of its own, compare it with float64, and time it."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = workload.build(0.0).to(dtype).train(step == "training")
    exact = _runner(deepcopy(model).double(), step)(_cast(_inputs(workload), torch.float64))
    inputs = _cast(_inputs(workload), dtype)
    eager = _runner(deepcopy(model), step)
    records: list[GraphRecord] = []
    with Session(options={"timed": True}, observer=records.append) as session:
        twin = deepcopy(model)
        compiled = _runner(twin, step, torch.compile(twin, backend=session.backend))
        start = time.perf_counter()
        first = compiled(inputs)
        compile_s = time.perf_counter() - start
        eager_error = worst_error(eager(inputs), exact)
        gyrator_error = worst_error(first, exact)
        eager_ms, gyrator_ms = interleaved((eager, compiled), inputs, repeat)
    return Row(
        workload.name, step, dtype, eager_ms, gyrator_ms, compile_s,
        eager_error, gyrator_error, tuple(records),
    )  # fmt: skip


def interleaved(runs: tuple[Run, ...], inputs: Inputs, repeat: int) -> list[float]:
    """Return each function's median time in milliseconds, taking turns so that noise is shared."""
    times: list[list[float]] = [[] for _ in runs]
    for round_ in range(repeat + 2):
        for k, run in enumerate(runs):
            start = time.perf_counter()
            run(inputs)
            if round_ >= 2:
                times[k].append(1e3 * (time.perf_counter() - start))
    return [median(t) for t in times]


def _inputs(workload: Workload) -> Inputs:
    return workload.inputs(torch.Generator().manual_seed(1))


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}


def _runner(model: nn.Module, step: Step, call: Callable[..., object] | None = None) -> Run:
    """Return the function to time; `call` replaces the model's own forward."""
    make = inference if step == "inference" else training_step
    return make(model, model if call is None else call)
