"""Measuring one workload: accuracy, speed, and compile time."""

import time
from collections.abc import Callable
from copy import deepcopy
from statistics import geometric_mean, median
from typing import Literal

import torch
from torch import Tensor, nn

from gyrator.demo.models import Inputs, Workload, inference, training_step
from gyrator.reports.accuracy import within_bound, worst_error
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_ir.define import frozen

Step = Literal["inference", "training"]
Run = Callable[[Inputs], list[Tensor]]
SAMPLES = {torch.float32: 1, torch.bfloat16: 8}
"""Number of samples of weights and inputs to compare: errors in narrow dtypes vary more."""


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
    """The time of the first call, including tracing."""
    eager_errors: tuple[float, ...]
    """Relative error against float64 for each sample of weights and inputs, see `worst_error`."""
    gyrator_errors: tuple[float, ...]
    records: tuple[GraphRecord, ...]
    """The graphs that ran after the first call, during which a model may be compiled again."""

    @property
    def kernels(self) -> int:
        """Generated kernels."""
        return sum(len(r.kernels) for r in self.records)

    @property
    def externs(self) -> int:
        """ATen calls."""
        return sum(len(r.externs) for r in self.records)

    @property
    def eager_error(self) -> float:
        """Mean of `eager_errors`."""
        return geometric_mean(self.eager_errors)

    @property
    def gyrator_error(self) -> float:
        """Mean of `gyrator_errors`."""
        return geometric_mean(self.gyrator_errors)

    @property
    def right(self) -> bool:
        """Whether everything was compiled and the errors are within the bound."""
        compiled = all(not r.fallback for r in self.records)
        return compiled and within_bound(self.gyrator_errors, self.eager_errors, self.dtype)


def measure(workload: Workload, step: Step, dtype: torch.dtype, repeat: int = 7) -> Row:
    """Compile a workload in a session of its own, compare it with float64, and time it."""
    torch._dynamo.reset()
    model = _model(workload, step, dtype, 0)
    inputs = _inputs(workload, dtype, 0)
    eager = _runner(model, step)
    records: list[GraphRecord] = []
    # Programs from the cache have no levels to show, and no compile time.
    options = {"timed": True, "cache": False}
    with Session(options=options, observer=records.append) as session:
        copy = deepcopy(model)
        compiled = _runner(copy, step, torch.compile(copy, backend=session.backend))
        start = time.perf_counter()
        compiled(inputs)
        compile_s = time.perf_counter() - start
        compiled(inputs)
        records[:] = [r.from_now() for r in records]  # exclude the first call
        errors: list[tuple[float, float]] = []
        for sample in range(SAMPLES[dtype]):
            fresh = _model(workload, step, dtype, sample)
            for target in (model, copy):
                target.load_state_dict(fresh.state_dict())
            exact = _runner(fresh.double(), step)(_inputs(workload, torch.float64, sample, dtype))
            inputs = _inputs(workload, dtype, sample)
            errors.append((worst_error(eager(inputs), exact), worst_error(compiled(inputs), exact)))
        eager_ms, gyrator_ms = interleaved((eager, compiled), inputs, repeat)
    eager_errors, gyrator_errors = zip(*errors, strict=True)
    return Row(
        workload.name, step, dtype, eager_ms, gyrator_ms, compile_s,
        eager_errors, gyrator_errors, tuple(filter(_ran, records)),
    )  # fmt: skip


def _ran(record: GraphRecord) -> bool:
    """Return whether a graph ran, according to its kernel timings."""
    timings = record.timings() if record.timings is not None else {}
    return not timings or any(calls for calls, _ in timings.values())


def interleaved(runs: tuple[Run, ...], inputs: Inputs, repeat: int) -> list[float]:
    """Return each function's median time in milliseconds, interleaved so that noise is shared."""
    times: list[list[float]] = [[] for _ in runs]
    for round_ in range(repeat + 2):
        for k, run in enumerate(runs):
            start = time.perf_counter()
            run(inputs)
            if round_ >= 2:
                times[k].append(1e3 * (time.perf_counter() - start))
    return [median(t) for t in times]


def _model(workload: Workload, step: Step, dtype: torch.dtype, sample: int) -> nn.Module:
    torch.manual_seed(sample)
    return workload.build(0.0).to(dtype).train(step == "training")


def _inputs(
    workload: Workload, dtype: torch.dtype, sample: int, rounded: torch.dtype | None = None
) -> Inputs:
    """Return the inputs of a sample as `dtype`, after rounding to `rounded` if it is set."""
    inputs = workload.inputs(torch.Generator().manual_seed(sample + 1))
    for kind in (rounded, dtype) if rounded else (dtype,):
        inputs = {k: v.to(kind) if v.is_floating_point() else v for k, v in inputs.items()}
    return inputs


def _runner(model: nn.Module, step: Step, call: Callable[..., object] | None = None) -> Run:
    """Return the function to time; `call` replaces the model's own forward."""
    make = inference if step == "inference" else training_step
    return make(model, model if call is None else call)
