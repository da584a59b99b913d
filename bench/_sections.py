"""The sections of bench/cpu.py: each runs its measurements and returns rows and raw numbers."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from _child import measure
from _clock import geomean
from _tables import Sheet, failed_row
from attrs import frozen

Raw = dict[str, Any]
COMPILERS = ("gyrator", "inductor")


@frozen
class Plan:
    """What to measure, and where caches are kept."""

    models: tuple[str, ...]
    steps: tuple[str, ...]
    dtype: str
    threads: int
    rounds: int
    cases: tuple[str, ...]
    """Single kernels, keys of `CASES`."""
    shapes: tuple[str, ...]
    """Functions whose calls are timed, keys of `SHAPES`."""
    calls: tuple[int, ...]
    """Numbers of kernels in them."""
    caches: Path
    """A new folder. Sections share each workload's caches, so that later ones start warm."""
    say: Callable[[str], None]

    def workloads(self) -> list[tuple[str, dict[str, Any]]]:
        """Return name and arguments of each model and step."""
        common = {"dtype": self.dtype, "threads": self.threads, "rounds": self.rounds}
        return [
            (f"{m}, {s}", {"model": m, "step": s, **common})
            for m in self.models
            for s in self.steps
        ]

    def cache_of(self, name: str) -> Path:
        """Return the folder of a workload's caches."""
        return self.caches / "".join(c if c.isalnum() else "_" for c in name)

    def measure(self, task: str, name: str, arguments: Mapping[str, Any], shared: str = "") -> Raw:
        """Run a task for a workload; those with the same `shared` find each other's caches."""
        start = time.perf_counter()
        found = measure(task, arguments, self.cache_of(shared or name))
        times = found.get("times", {})
        parts = [f"{b} {1e3 * t['thread_min']:.3g} ms" for b, t in times.items()]
        compiler = [str(arguments["backend"])] if "backend" in arguments else []
        spent = f"({time.perf_counter() - start:.0f} s)"
        self.say(" ".join([f"{task}: {name}:", *compiler, ", ".join(parts), spent]))
        return found


def run(plan: Plan) -> tuple[Sheet, Raw]:
    """Run time of the models."""
    sheet = Sheet(
        f"Run time, {plan.dtype}, {plan.threads} thread(s)",
        ("workload", "eager ms", "gyrator ms", "inductor ms", "eager/gyrator", "inductor/gyrator",
         "inductor/gyrator (wall)"),
    )  # fmt: skip
    raw: Raw = {}
    for name, arguments in plan.workloads():
        found = raw[name] = plan.measure("run_time", name, arguments)
        if "error" in found:
            sheet.rows.append(tuple(failed_row(name, found, 7)))
            continue
        clock = "thread_min" if plan.threads == 1 else "wall_min"
        times = {b: t[clock] for b, t in found["times"].items()}
        wall = {b: t["wall_median"] for b, t in found["times"].items()}
        ours = times["gyrator"]
        found["eager/gyrator"] = times["eager"] / ours
        found["inductor/gyrator"] = times["inductor"] / ours
        sheet.rows.append((
            name, *(1e3 * times[b] for b in ("eager", "gyrator", "inductor")),
            found["eager/gyrator"], found["inductor/gyrator"], wall["inductor"] / wall["gyrator"],
        ))  # fmt: skip
    _means(sheet, raw, "eager/gyrator", "inductor/gyrator")
    return sheet, raw


def compile_(plan: Plan) -> tuple[Sheet, Raw]:
    """First compile with nothing cached."""
    sheet = Sheet(
        "First compile, nothing cached (seconds of CPU, wall in brackets)",
        ("workload", "gyrator", "inductor", "gyrator/inductor", "(wall)", "Dynamo", "AOT",
         "gyrator after AOT", "inductor after AOT", "ratio after AOT"),
    )  # fmt: skip
    raw: Raw = {}
    for name, arguments in plan.workloads():
        found = raw[name] = _both(plan, name, arguments | {"trivial_first": True})
        if "error" in found:
            sheet.rows.append(tuple(failed_row(name, found, 10)))
            continue
        ours, theirs = (found[c] for c in COMPILERS)
        found["cpu ratio"] = ours["cpu_seconds"] / theirs["cpu_seconds"]
        found["wall ratio"] = ours["seconds"] / theirs["seconds"]
        found["after AOT ratio"] = ours["after_aot_seconds"] / theirs["after_aot_seconds"]
        sheet.rows.append((
            name, *(f"{r['cpu_seconds']:.1f} ({r['seconds']:.1f})" for r in (ours, theirs)),
            found["cpu ratio"], found["wall ratio"], ours["dynamo_seconds"], ours["aot_seconds"],
            ours["after_aot_seconds"], theirs["after_aot_seconds"], found["after AOT ratio"],
        ))  # fmt: skip
    _means(sheet, raw, "cpu ratio", "wall ratio", "after AOT ratio")
    trivial = [(r["gyrator"]["trivial_seconds"], r["inductor"]["trivial_seconds"])
               for r in raw.values() if "error" not in r]  # fmt: skip
    if trivial:
        means = [sum(t) / len(t) for t in zip(*trivial, strict=True)]
        sheet.summary.append(
            "not counted, a trivial compile before (imports, header precompile, ISA probes): "
            f"gyrator {means[0]:.1f} s, inductor {means[1]:.1f} s"
        )
    return sheet, raw


def floor(plan: Plan) -> tuple[Sheet, Raw]:
    """First compile over that of `aot_eager`, which only traces: the least of three runs each."""
    sheet = Sheet(
        "First compile over `aot_eager`, nothing cached, a process of its own",
        ("workload", "aot_eager CPU s (wall)", "gyrator CPU s (wall)", "CPU ratio", "wall ratio",
         "waits for compilers", "stages, s"),
    )  # fmt: skip
    raw: Raw = {}
    for name, arguments in plan.workloads():
        found = raw[name] = _least(plan, name, arguments)
        if "error" in found:
            sheet.rows.append(tuple(failed_row(name, found, 7)))
            continue
        least, ours = found["aot_eager"], found["gyrator"]
        found["cpu ratio"] = ours["cpu_seconds"] / least["cpu_seconds"]
        found["wall ratio"] = ours["seconds"] / least["seconds"]
        stages = ours["stages"]
        shown = ", ".join(f"{k} {v:.2f}" for k, v in stages.items() if v > 0.005)
        waits = f"{100 * stages.get('build', 0.0) / ours['seconds']:.0f} %"
        cells = (f"{r['cpu_seconds']:.1f} ({r['seconds']:.1f})" for r in (least, ours))
        row = (name, *cells, found["cpu ratio"], found["wall ratio"], waits, shown)
        sheet.rows.append(row)
    _means(sheet, raw, "cpu ratio", "wall ratio")
    return sheet, raw


def _least(plan: Plan, name: str, arguments: dict[str, Any]) -> Raw:
    """Return the first calls of both with the least wall time of three, which run in turns."""
    found: Raw = {}
    for turn in range(3):
        for compiler in ("aot_eager", "gyrator"):
            asked = arguments | {"trivial_first": False, "backend": compiler}
            one = plan.measure("first_call", name, asked, shared=f"{name} floor {turn}")
            if "error" in one:
                return one
            if compiler not in found or one["seconds"] < found[compiler]["seconds"]:
                found[compiler] = one
    return found


def warm(plan: Plan) -> tuple[Sheet, Raw]:
    """First call in a new process with the caches of an earlier one."""
    sheet = Sheet(
        "Warm start (seconds of CPU, wall in brackets)",
        ("workload", "gyrator", "inductor", "gyrator/inductor", "(wall)", "gyrator, imports paid",
         "inductor, imports paid", "ratio, imports paid"),
    )  # fmt: skip
    raw: Raw = {}
    for name, arguments in plan.workloads():
        for compiler in COMPILERS:  # fills the caches where the compile section has not
            plan.measure("first_call", name, arguments | {"trivial_first": True,
                                                          "backend": compiler})  # fmt: skip
        bare = _both(plan, name, arguments | {"trivial_first": False}, again=True)
        paid = _both(plan, name, arguments | {"trivial_first": True}, again=True)
        found = raw[name] = {"bare": bare, "imports paid": paid}
        if "error" in bare or "error" in paid:
            sheet.rows.append(tuple(failed_row(name, bare if "error" in bare else paid, 8)))
            found["error"] = bare.get("error") or paid.get("error")
            continue
        for key, one in (("bare", bare), ("imports paid", paid)):
            ours, theirs = (one[c] for c in COMPILERS)
            found[f"{key}, cpu ratio"] = ours["cpu_seconds"] / theirs["cpu_seconds"]
            found[f"{key}, wall ratio"] = ours["seconds"] / theirs["seconds"]
        cells = [f"{one[c]['cpu_seconds']:.1f} ({one[c]['seconds']:.1f})"
                 for one in (bare, paid) for c in COMPILERS]  # fmt: skip
        sheet.rows.append((
            name, *cells[:2], found["bare, cpu ratio"], found["bare, wall ratio"], *cells[2:],
            found["imports paid, cpu ratio"],
        ))  # fmt: skip
    _means(sheet, raw, "bare, cpu ratio", "bare, wall ratio", "imports paid, cpu ratio")
    return sheet, raw


def overhead(plan: Plan) -> tuple[Sheet, Raw]:
    """Per-call overhead on tiny tensors."""
    sheet = Sheet(
        "Per-call time on tiny tensors, microseconds of thread time",
        ("kernels", "launches", "baseline", "gyrator", "inductor", "gyrator beyond",
         "inductor beyond", "ratio beyond"),
    )  # fmt: skip
    raw: Raw = {}
    for shape in plan.shapes:
        for kernels in plan.calls:
            name = f"{kernels} {shape}"
            rounds = {"rounds": 10 * plan.rounds, "batch": 100}
            found = raw[name] = plan.measure(
                "call_overhead",
                name,
                {"shape": shape, "kernels": kernels, **rounds},
                shared="calls",
            )
            if "error" in found:
                sheet.rows.append(tuple(failed_row(name, found, 8)))
                continue
            base, ours, theirs = (
                1e6 * found["times"][b]["thread_min"] for b in ("baseline", *COMPILERS)
            )
            found["beyond baseline"] = (ours - base) / (theirs - base)
            sheet.rows.append((
                name, found["launches"], base, ours, theirs, ours - base, theirs - base,
                found["beyond baseline"],
            ))  # fmt: skip
    _means(sheet, raw, "beyond baseline")
    return sheet, raw


def memory(plan: Plan) -> tuple[Sheet, Raw]:
    """Peak memory of one step."""
    sheet = Sheet(
        "Peak of CPU tensor memory in one step, MB",
        ("workload", "eager", "gyrator", "inductor", "gyrator/eager", "gyrator/inductor"),
    )
    raw: Raw = {}
    for name, arguments in plan.workloads():
        found = raw[name] = plan.measure("peak_memory", name, arguments)
        if "error" in found:
            sheet.rows.append(tuple(failed_row(name, found, 6)))
            continue
        eager, ours, theirs = (found["peak_bytes"][b] / 1e6 for b in ("eager", *COMPILERS))
        found["gyrator/eager"], found["gyrator/inductor"] = ours / eager, ours / theirs
        sheet.rows.append((name, eager, ours, theirs, ours / eager, ours / theirs))
    _means(sheet, raw, "gyrator/eager", "gyrator/inductor")
    return sheet, raw


def kernels(plan: Plan) -> tuple[Sheet, Raw]:
    """Single kernels."""
    sheet = Sheet(
        f"Kernels, {plan.threads} thread(s)",
        ("case", "eager ms", "gyrator ms", "inductor ms", "eager/gyrator", "inductor/gyrator",
         "kernels", "build, CPU ms a kernel", "inductor's build, CPU ms"),
    )  # fmt: skip
    raw: Raw = {}
    for case in plan.cases:
        arguments = {"case": case, "threads": plan.threads, "rounds": 2 * plan.rounds}
        found = raw[case] = plan.measure("time_kernel", case, arguments, shared="kernels")
        if "error" in found:
            sheet.rows.append(tuple(failed_row(case, found, 9)))
            continue
        clock = "thread_min" if plan.threads == 1 else "wall_min"
        eager, ours, theirs = (1e3 * found["times"][b][clock] for b in ("eager", *COMPILERS))
        found["eager/gyrator"], found["inductor/gyrator"] = eager / ours, theirs / ours
        build = {b: 1e3 * s for b, s in found["build_cpu_seconds"].items()}
        count = found["kernels"] or 1
        sheet.rows.append((
            case, eager, ours, theirs, eager / ours, theirs / ours, found["kernels"],
            build["gyrator"] / count, build["inductor"],
        ))  # fmt: skip
    _means(sheet, raw, "eager/gyrator", "inductor/gyrator")
    return sheet, raw


SECTIONS: Mapping[str, Callable[[Plan], tuple[Sheet, Raw]]] = MappingProxyType({
    "compile": compile_,
    "floor": floor,
    "warm": warm,
    "run": run,
    "memory": memory,
    "overhead": overhead,
    "kernels": kernels,
})  # fmt: skip
"""In the order in which they run: each leaves caches for the next."""


def _both(plan: Plan, name: str, arguments: dict[str, Any], again: bool = False) -> Raw:
    """Measure the first call of both compilers, one after the other."""
    found: Raw = {}
    for compiler in COMPILERS:
        one = plan.measure("first_call", name, arguments | {"backend": compiler})
        if "error" in one:
            return one
        if again and not all(one["cached"]):
            return {"error": "Gyrator compiled although its cache was warm"}
        found[compiler] = one
    return found


def _means(sheet: Sheet, raw: Raw, *keys: str) -> None:
    for key in keys:
        values: Sequence[float] = [r[key] for r in raw.values() if r.get(key, 0) > 0]
        if values:
            sheet.summary.append(
                f"geometric mean of {key}: {geomean(values):.2f}"
                f" (least {min(values):.2f}, most {max(values):.2f}, of {len(values)})"
            )
