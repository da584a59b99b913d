"""Timing of callables on a device, alone and against each other.

On a busy machine a call on several threads takes as long as the scheduler keeps one of them
waiting: 100 times as long as its work, if that is short. The system counts how often it took a
processor from the process, so that such samples can be left out. Work on one thread of the host is
timed by the clock of that thread, which stands still meanwhile.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gyrator_ir.define import frozen

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # Windows does not count them

    def _interruptions() -> int:
        return 0

else:

    def _interruptions() -> int:
        """Return how often the system has taken a processor from a thread of this process."""
        return getrusage(RUSAGE_SELF).ru_nivcsw


_TIME_SLICE = 4e-3
"""Seconds that an interruption costs on a busy machine, about."""
_TOLERANCE = 0.05
"""The share of a sample that interruptions may have cost."""
_MORE_SECONDS = 0.25
"""The time to wait for samples without interruptions."""
_FEWEST = 2
"""The least number of undisturbed samples of each callable after which a comparison may end."""


class Timer(Protocol):
    """What timing needs of a device: a `DeviceInterface`, or one device of several."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        ...

    def clock(self) -> Callable[[], float]:
        """Return the clock by which to time work on the device, in seconds."""
        ...


@frozen
class Timing:
    """Minimum and median time of one call in seconds."""

    minimum: float
    median: float
    disturbed: bool = False
    """Whether other processes slowed all samples down, so that the times say little."""


@frozen
class _Sample:
    seconds: float
    """The time of one call."""
    disturbed: bool


def time_callable(
    run: Callable[[], object],
    device: Timer,
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
    device: Timer,
    *,
    samples: int = 20,
    warmup: int = 3,
    seconds: float = 0.0,
    decided: Callable[[Mapping[str, float]], bool] = lambda _: False,
) -> dict[str, Timing]:
    """Time several callables in interleaved rounds, so that background load affects all equally.

    While other processes take processors away from this one, more rounds follow for up to 0.25 s.
    The rounds end early if `decided` returns true for the minimum seconds of each callable so far.
    """
    repeats: dict[str, int] = {}
    for name, run in runs.items():
        for _ in range(max(warmup - 1, 0)):
            run()
        device.synchronize()
        once = _sample(run, device, 1).seconds
        repeats[name] = max(1, min(1_000_000, int(seconds / once))) if once > 0 else 1
    samples_by_run: dict[str, list[_Sample]] = {name: [] for name in runs}

    def measure_all() -> None:
        for name, run in runs.items():
            samples_by_run[name].append(_sample(run, device, repeats[name]))

    def settled() -> bool:
        undisturbed = {
            name: [s.seconds for s in measured if not s.disturbed]
            for name, measured in samples_by_run.items()
        }
        if any(len(measured) < _FEWEST for measured in undisturbed.values()):
            return False
        return decided({name: min(measured) for name, measured in undisturbed.items()})

    def timings() -> dict[str, Timing]:
        return {name: _timing(s) for name, s in samples_by_run.items()}

    for _ in range(samples):
        measure_all()
        if settled():
            return timings()
    end = time.perf_counter() + _MORE_SECONDS
    while not all(_enough(s, samples) for s in samples_by_run.values()):
        if time.perf_counter() >= end:
            break
        measure_all()
    return timings()


def _sample(run: Callable[[], object], device: Timer, repeats: int) -> _Sample:
    device.synchronize()
    clock = device.clock()
    before = _interruptions()
    begin = clock()
    for _ in range(repeats):
        run()
    device.synchronize()
    seconds = clock() - begin
    if clock is time.thread_time:
        return _Sample(seconds / repeats, False)
    lost = (_interruptions() - before) * _TIME_SLICE
    return _Sample(seconds / repeats, lost > _TOLERANCE * seconds)


def _enough(measured: Sequence[_Sample], samples: int) -> bool:
    """Return whether as many samples as half of `samples` are undisturbed."""
    return 2 * sum(not s.disturbed for s in measured) >= samples


def _timing(measured: Sequence[_Sample]) -> Timing:
    """Return the times of the undisturbed samples, or of all if there are none."""
    undisturbed = [s.seconds for s in measured if not s.disturbed]
    seconds = undisturbed or [s.seconds for s in measured]
    return Timing(min(seconds), statistics.median(seconds), not undisturbed)
