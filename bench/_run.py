"""Run time of models: eager, Gyrator and TorchInductor take turns in one process."""

from copy import deepcopy
from functools import partial
from typing import Any

from _clock import interleave
from _subject import BACKENDS, build, compiled, stepper


def run_time(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the times of one workload by backend. The copies share weights' values and inputs."""
    model, inputs = build(arguments)
    records: list[Any] = []
    runs = {}
    for backend in BACKENDS:
        twin = deepcopy(model)
        step = stepper(twin, arguments["step"], compiled(twin, backend, records))
        runs[backend] = partial(step, inputs)
    times = interleave(runs, arguments["rounds"], warm=3)
    graphs = [
        {"phase": r.phase, "kernels": len(r.kernels), "launches": r.launches,
         "externs": len(r.externs)}
        for r in records
    ]  # fmt: skip
    return {"times": times, "graphs": graphs}
