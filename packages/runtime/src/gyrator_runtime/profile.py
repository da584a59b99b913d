"""Timing of callables on a device, alone and against each other."""

import statistics
import time
from collections.abc import Callable, Mapping

from attrs import frozen

from gyrator_runtime.device import DeviceInterface


@frozen
class Timing:
    """Minimum and median time of one call in seconds."""

    minimum: float
    median: float


def time_callable(
    run: Callable[[], object],
    device: DeviceInterface,
    *,
    samples: int = 20,
    warmup: int = 3,
    sample_seconds: float = 0.0,
) -> Timing:
    """Time `run`, which queues work on `device`. Short calls are repeated to fill
    `sample_seconds`."""
    return compare({"run": run}, device, samples=samples, warmup=warmup, seconds=sample_seconds)[
        "run"
    ]


def compare(
    runs: Mapping[str, Callable[[], object]],
    device: DeviceInterface,
    *,
    samples: int = 20,
    warmup: int = 3,
    seconds: float = 0.0,
) -> dict[str, Timing]:
    """Time several callables in interleaved rounds, so that background load affects all equally."""
    repeats: dict[str, int] = {}
    for name, run in runs.items():
        for _ in range(max(warmup - 1, 0)):
            run()
        device.synchronize()
        once = _sample(run, device, 1)
        repeats[name] = max(1, min(1_000_000, int(seconds / once))) if once > 0 else 1
    seconds_by_run: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(samples):
        for name, run in runs.items():
            seconds_by_run[name].append(_sample(run, device, repeats[name]))
    return {n: Timing(min(t), statistics.median(t)) for n, t in seconds_by_run.items()}


def _sample(run: Callable[[], object], device: DeviceInterface, repeats: int) -> float:
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    device.synchronize()
    return (time.perf_counter() - begin) / repeats
