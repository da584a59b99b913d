"""Choosing the quickest of several candidates by running them."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from attrs import frozen

from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.profile import Timing, compare

Candidate = TypeVar("Candidate")


@frozen
class Choice(Generic[Candidate]):
    """The winner, every candidate's time, and what went wrong with those that failed."""

    best: Candidate
    timings: Mapping[Candidate, Timing]
    failures: Mapping[Candidate, str]


def choose(
    candidates: Mapping[Candidate, Callable[[], object]],
    device: DeviceInterface,
    *,
    samples: int = 10,
    sample_seconds: float = 0.0,
    gain: float = 1.0,
) -> Choice[Candidate]:
    """Run all candidates in turn and return the one of least median time; ties go to the first.

    A candidate that raises is left out; short ones repeat to fill `sample_seconds`. The first
    candidate is taken unless it takes `gain` times as long as the best. ValueError where none runs.
    """
    works: dict[str, Candidate] = {}
    failures: dict[Candidate, str] = {}
    for number, (candidate, run) in enumerate(candidates.items()):
        try:
            run()
            device.synchronize()
        except Exception as error:
            failures[candidate] = f"{type(error).__name__}: {error}"
        else:
            works[str(number)] = candidate
    if not works:
        raise ValueError(f"no candidate runs: {'; '.join(failures.values())}")
    runs = {n: candidates[c] for n, c in works.items()}
    timed = compare(runs, device, samples=samples, seconds=sample_seconds)
    timings = {c: timed[n] for n, c in works.items()}
    best = min(timings, key=lambda c: timings[c].median)
    first = next(iter(candidates))
    if first in timings and timings[first].median < gain * timings[best].median:
        best = first
    return Choice(best, timings, failures)
