"""What a report measures: the machine's limits, ATen's ops in one call of a function."""

import time
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch.profiler import ProfilerActivity, profile

_BYTES = 64 << 20
_ROWS = 1024
_TRIES = 5


@frozen
class Limits:
    """What a device was seen to do in a second."""

    bytes: float
    """Of memory, read and written by a copy that fits no cache."""
    flops: float
    """Of a product of square `float32` matrices."""


@frozen
class OpTime:
    """An op of ATen in one call of a function."""

    name: str
    calls: int
    seconds: float
    """Without the ops that it calls."""


def measure_limits() -> Limits:
    """Measure this machine's CPU, for half a second."""
    source = torch.ones(_BYTES // 4)
    destination = torch.empty_like(source)
    a = torch.ones(_ROWS, _ROWS)
    return Limits(
        2 * _BYTES / _least(lambda: destination.copy_(source)),
        2 * _ROWS**3 / _least(lambda: a @ a),
    )


def _least(run: Callable[[], Any]) -> float:
    taken = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def aten_times(run: Callable[[], Any]) -> tuple[OpTime, ...]:
    """Call a function once under PyTorch's profiler; return the ops of ATen that it ran."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    return tuple(
        OpTime(e.key, e.count, e.self_cpu_time_total / 1e6)
        for e in found.key_averages()
        if e.key.startswith("aten::") and e.self_cpu_time_total
    )
