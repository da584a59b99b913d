"""Where the Python time of one first compile goes: Dynamo, AOTAutograd, and each stage of Gyrator.

    nox -s bench -- profile_compile [--model BERT] [--step training] [--top 12]

A trivial compile runs first, so that imports are not counted. The profiler (cProfile) makes
functions that are called often look dearer than they are: read shares, not seconds.
"""

import argparse
import cProfile
import os
import pstats
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from _subject import STEPS, build, compiled, stepper, warm_up
from _tables import Sheet
from attrs import frozen
from rich.console import Console

AREAS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "lowering": ("/gyrator_lowering/",),
    "scheduler": ("/gyrator_scheduler/",),
    "codegen": ("/gyrator_codegen/", "/gyrator_codegen_cpp/"),
    "wrapper": ("/gyrator_wrapper_python/",),
    "runtime": ("/gyrator_runtime/",),
    "ir": ("/gyrator_ir/",),
    "umbrella": ("/gyrator/",),
    "Dynamo": ("/torch/_dynamo/",),
    "AOTAutograd": ("/torch/_functorch/", "/torch/_decomp/", "/torch/_refs/", "/torch/_prims"),
    "fake tensors": ("/torch/_subclasses/", "/torch/_meta_registrations", "/torch/fx/experimental"),
    "fx": ("/torch/fx/",),
    "sympy": ("/sympy/",),
    "torch": ("/torch/",),
})  # fmt: skip
"""Parts of file names, first match wins."""


@frozen
class Function:
    """One function's share of the profile, in seconds."""

    name: str
    area: str
    calls: int
    own: float
    """Without the functions that it calls."""
    whole: float
    """With them."""


def functions(profile: cProfile.Profile) -> Iterator[Function]:
    """Yield the functions of a profile with their areas; built-ins count for `other`."""
    stats: Any = pstats.Stats(profile)
    for (file, line, name), (_, calls, own, whole, _callers) in stats.stats.items():
        area = next((a for a, parts in AREAS.items() if any(p in file for p in parts)), "other")
        place = f"{file.rpartition('/')[2]}:{line}" if line else ""
        yield Function(f"{name} {place}".strip(), area, calls, own, whole)


def profile_first_call(model: str, step: str) -> tuple[cProfile.Profile, list[Any], float]:
    """Return the profile, Gyrator's records, and the wall seconds of a first call."""
    arguments = {"model": model, "step": step, "dtype": "float32", "threads": 1}
    module, inputs = build(arguments)
    warm_up("gyrator")
    records: list[Any] = []
    run = stepper(module, step, compiled(module, "gyrator", records))
    profile = cProfile.Profile(time.thread_time)
    start = time.perf_counter()
    profile.runcall(run, inputs)
    return profile, records, time.perf_counter() - start


def sheets(found: list[Function], records: list[Any], top: int) -> Iterator[Sheet]:
    """Yield the tables: stages, areas, and the dearest functions of each of Gyrator's packages."""
    stages = Sheet("Stages, wall seconds under the profiler", ("graph", "nodes", "stages"))
    for record in records:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in record.seconds)
        stages.rows.append((record.phase, record.nodes, parts))
    yield stages
    own: dict[str, float] = defaultdict(float)
    for function in found:
        own[function.area] += function.own
    areas = Sheet("Own CPU time of Python functions by area", ("area", "seconds", "share"))
    for area, seconds in sorted(own.items(), key=lambda item: -item[1]):
        areas.rows.append((area, seconds, f"{100 * seconds / sum(own.values()):.0f} %"))
    yield areas
    for area in list(AREAS)[:7]:
        sheet = Sheet(f"Dearest functions: {area}", ("function", "calls", "own s", "whole s"))
        mine = sorted((f for f in found if f.area == area), key=lambda f: -f.own)
        sheet.rows.extend((f.name, f.calls, f.own, f.whole) for f in mine[:top])
        yield sheet


def main(arguments: list[str]) -> None:
    """Profile one workload and print the tables."""
    parser = argparse.ArgumentParser("bench/profile_compile.py")
    parser.add_argument("--model", default="BERT")
    parser.add_argument("--step", choices=STEPS, default="training")
    parser.add_argument("--top", type=int, default=12, help="functions shown a package")
    parser.add_argument("--save", help="also write the raw profile, for pstats")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as caches:
        os.environ["GYRATOR_CACHE_DIR"] = caches
        profile, records, seconds = profile_first_call(chosen.model, chosen.step)
    if chosen.save:
        profile.dump_stats(chosen.save)
    console = Console(width=140)
    console.print(f"{chosen.model}, {chosen.step}: first call {seconds:.1f} s under the profiler")
    for sheet in sheets(list(functions(profile)), records, chosen.top):
        sheet.print(console)


if __name__ == "__main__":
    main(sys.argv[1:])
