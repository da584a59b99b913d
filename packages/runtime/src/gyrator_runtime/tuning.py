"""Selection of the fastest of several candidates by measurement."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.profile import compare

Candidate = TypeVar("Candidate")

_MAX_REPEATS = 16
"""Maximum number of runs in one captured graph."""


def choose(
    candidates: Mapping[Candidate, Callable[[], object]],
    device: DeviceInterface,
    *,
    samples: int = 10,
    sample_seconds: float = 0.0,
    gain: float = 1.0,
) -> Candidate:
    """Run all candidates in turn and return the one with the lowest median time.

    Candidates that raise are skipped; short ones are repeated to fill `sample_seconds`. On a device
    with graphs they are captured, so that device time is measured without host overhead. The first
    candidate is returned unless it takes at least `gain` times as long as the best.

    Raises:
        ValueError: when no candidate runs.
    """
    works: dict[str, Candidate] = {}
    failures: list[str] = []
    for number, (candidate, run) in enumerate(candidates.items()):
        try:
            run()
            device.synchronize()
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
        else:
            works[str(number)] = candidate
    if not works:
        raise ValueError(f"no candidate runs: {'; '.join(failures)}")
    runs = {n: candidates[c] for n, c in works.items()}
    if device.supports_graphs():
        runs = _captured(runs, device, sample_seconds)
    timed = compare(runs, device, samples=samples, seconds=sample_seconds)
    timings = {c: timed[n] for n, c in works.items()}
    best = min(timings, key=lambda c: timings[c].median)
    first = next(iter(candidates))
    if first in timings and timings[first].median < gain * timings[best].median:
        best = first
    return best


def _captured(
    runs: Mapping[str, Callable[[], object]], device: DeviceInterface, seconds: float
) -> dict[str, Callable[[], object]]:
    """Return replays of captured graphs of the runs, or the runs if one cannot be captured.

    Each graph contains the same number of repetitions, so that gaps between graphs matter little.
    """
    slowest = max(t.median for t in compare(runs, device, samples=1).values())
    repeats = max(1, min(_MAX_REPEATS, int(seconds / slowest)))
    try:
        return {n: device.capture(partial(_repeat, run, repeats)) for n, run in runs.items()}
    except RuntimeError:
        return dict(runs)


def _repeat(run: Callable[[], object], times: int) -> None:
    for _ in range(times):
        run()
