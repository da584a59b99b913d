"""Clocks that stay meaningful on a machine that others use: thread time and process-tree time."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

TICK = os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds() -> float:
    """Return the CPU seconds used so far by this process and all its descendants, dead or alive.

    Read from /proc (Linux), since `getrusage` leaves out children that still run, as the compile
    workers of TorchInductor do.
    """
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(int(f) for f in fields[11:15]) / TICK
    return sum(seconds for pid, seconds in used.items() if _descends(pid, os.getpid(), parents))


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor


def interleave(
    runs: Mapping[str, Callable[[], Any]],
    rounds: int,
    batch: int | Mapping[str, int] = 1,
    warm: int = 2,
) -> dict[str, dict[str, float]]:
    """Time functions in turns; seconds of one call: median and least, of wall and thread time.

    A turn is `batch` calls, the same number for all or one by name.

    Thread time is that of the calling thread, so it covers the work only where torch runs one
    thread.
    """
    wall: dict[str, list[float]] = {name: [] for name in runs}
    thread: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(rounds + warm):
        for name, run in runs.items():
            calls = batch if isinstance(batch, int) else batch[name]
            start_wall, start_thread = time.perf_counter(), time.thread_time()
            for _ in range(calls):
                run()
            stop_thread, stop_wall = time.thread_time(), time.perf_counter()
            if round_ >= warm:
                wall[name].append((stop_wall - start_wall) / calls)
                thread[name].append((stop_thread - start_thread) / calls)
    return {
        name: {
            "wall_median": median(wall[name]),
            "wall_min": min(wall[name]),
            "thread_median": median(thread[name]),
            "thread_min": min(thread[name]),
        }
        for name in runs
    }


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean; NaN of nothing."""
    return exp(sum(map(log, values)) / len(values)) if values else float("nan")
