"""How the work of Gyrator's stages grows with the graph: 1,000 to 20,000 nodes.

    nox -s bench -- compiler [--shapes chain,held] [--sizes 1000,5000,20000] [--json FILE]

Prints the steps of each stage, its CPU seconds, and the slope of the log-log line through them; 1
is linear. A step is a call of a function, Python's or built in: the same number in every run.
Seconds are taken in a run of their own, with the collector of cycles off: its full collections walk
all that the process holds, and come in jumps. Ends with status 1 if the steps of a stage grow with
a slope above 1.2.
"""

import argparse
import cProfile
import gc
import json
import pstats
import sys
import time
from collections.abc import Callable, Mapping
from math import log
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from _environment import environment
from _tables import Sheet
from rich.console import Console
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from gyrator.targets.cpu import cpu_target
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.target import Target
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_runtime.device import cpu_isa
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_wrapper_python.stage import PythonWrapper

aten = torch.ops.aten
ROWS, WIDTH = 64, 256
STAGES = ("lower", "schedule", "host", "emit", "wrap")
MOST = 1.2
"""Slope of steps that no stage may pass."""

Meter = Callable[[Callable[[], Any]], tuple[Any, float]]
"""Runs something; returns its result and what it took."""


class Builder:
    """Builds an ATen graph with the fake values that AOTAutograd leaves on nodes."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.mode = FakeTensorMode()
        self.calls = 0

    def input(self, *shape: int) -> Node:
        """Add a float32 input."""
        node = self.graph.placeholder(f"arg{len(self.graph.nodes)}")
        with self.mode:
            node.meta["val"] = torch.empty(shape)
        return node

    def call(self, target: Any, *args: Any) -> Node:
        """Add a call."""
        self.calls += 1
        node = self.graph.call_function(target, args)
        values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
        with self.mode:
            node.meta["val"] = target(*values)
        return node

    def finish(self, *results: Node) -> GraphModule:
        """Return the module."""
        self.graph.output(results)
        return GraphModule(torch.nn.Module(), self.graph)


def chain(nodes: int) -> GraphModule:
    """Return pointwise ops in one line, with a row sum every 50."""
    make = Builder()
    x, y = make.input(ROWS, WIDTH), make.input(ROWS, WIDTH)
    while make.calls < nodes:
        if make.calls % 50 == 49:
            x = make.call(aten.sub.Tensor, x, make.call(aten.sum.dim_IntList, x, [1], True))
        x = make.call(aten.add.Tensor, make.call(aten.sin.default, x), y)
    return make.finish(x)


def wide(nodes: int) -> GraphModule:
    """Return many short lines that start from the same two inputs and end in one sum each."""
    make = Builder()
    x, y = make.input(ROWS, WIDTH), make.input(ROWS, WIDTH)
    results = []
    while make.calls < nodes:
        z = make.call(aten.mul.Tensor, x, float(make.calls))
        for _ in range(8):
            z = make.call(aten.add.Tensor, make.call(aten.tanh.default, z), y)
        results.append(make.call(aten.sum.dim_IntList, z, [1]))
    return make.finish(*results)


def blocks(nodes: int) -> GraphModule:
    """Return residual blocks: norm by rows, two matrix products with a gelu between, softmax."""
    make = Builder()
    x, w = make.input(ROWS, WIDTH), make.input(WIDTH, WIDTH)
    while make.calls < nodes:
        centred = make.call(aten.sub.Tensor, x, make.call(aten.mean.dim, x, [1], True))
        square = make.call(aten.mul.Tensor, centred, centred)
        scale = make.call(aten.rsqrt.default, make.call(aten.mean.dim, square, [1], True))
        hidden = make.call(aten.mm.default, make.call(aten.mul.Tensor, centred, scale), w)
        gate = make.call(aten.add.Tensor, make.call(aten.erf.default, hidden), 1.0)
        mixed = make.call(aten.mm.default, make.call(aten.mul.Tensor, hidden, gate), w)
        highest = make.call(aten.amax.default, mixed, [1], True)
        power = make.call(aten.exp.default, make.call(aten.sub.Tensor, mixed, highest))
        total = make.call(aten.sum.dim_IntList, power, [1], True)
        x = make.call(aten.add.Tensor, x, make.call(aten.div.Tensor, power, total))
    return make.finish(x)


def held(nodes: int) -> GraphModule:
    """Return a line of sines whose every value is used again, the last one first: as many small
    buffers are alive at once as a third of the nodes."""
    make = Builder()
    x, kept = make.input(WIDTH), []
    while make.calls < nodes // 3:
        x = make.call(aten.sin.default, x)
        kept.append(x)
    for value in reversed(kept):
        x = make.call(aten.add.Tensor, make.call(aten.mul.Tensor, x, value), 1.0)
    return make.finish(x)


def apart(nodes: int) -> GraphModule:
    """Return as many inputs and results as calls, of lengths that all differ."""
    make = Builder()
    results = []
    while make.calls < nodes:
        x = make.input(3 + make.calls)
        results.append(make.call(aten.add.Tensor, make.call(aten.sin.default, x), 1.0))
    return make.finish(*results)


def folds(nodes: int) -> GraphModule:
    """Return sums of rows, and of columns, of what is made of one input."""
    make = Builder()
    x, results = make.input(ROWS, WIDTH), []
    while make.calls < nodes:
        y = make.call(aten.mul.Tensor, x, float(make.calls))
        results.append(make.call(aten.sum.dim_IntList, y, [make.calls % 2]))
    return make.finish(*results)


SHAPES: Mapping[str, Callable[[int], GraphModule]] = MappingProxyType(
    {"chain": chain, "wide": wide, "blocks": blocks, "held": held, "apart": apart, "folds": folds}
)


def seconds(work: Callable[[], Any]) -> tuple[Any, float]:
    """Run something; return its result and its CPU seconds."""
    start = time.thread_time()
    result = work()
    return result, time.thread_time() - start


def steps(work: Callable[[], Any]) -> tuple[Any, float]:
    """Run something; return its result and how many functions it called."""
    profile = cProfile.Profile()
    result = profile.runcall(work)
    total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return result, total


def stages(
    gm: GraphModule, target: Target, meter: Meter
) -> tuple[dict[str, float], dict[str, int]]:
    """Return what each stage took by a meter, and how much it built."""
    targets = {"cpu": target}
    taken: dict[str, float] = {}

    def metered(stage: str, work: Callable[[], Any]) -> Any:
        result, taken[stage] = meter(work)
        return result

    gc.collect()
    gc.disable()
    program = metered("lower", lambda: lower(gm, LoweringOptions(), targets))
    planned = metered("schedule", lambda: schedule(program, SchedulerOptions(), targets))
    host = metered("host", lambda: plan_host(planned, SchedulerOptions(), targets))
    emit = CppBackend().emit
    units = metered("emit", lambda: emit(host.kernels, host.facts, host.origins, target))
    text = metered("wrap", lambda: PythonWrapper().emit(host)).text
    gc.enable()
    built = {
        "loop operations": len(program.operations),
        "kernels": len(host.kernels),
        "host instructions": len(host.instructions),
        "lines of C++": sum(u.text.count("\n") for u in units),
        "lines of Python": text.count("\n"),
    }
    taken["sum"] = sum(taken.values())
    return taken, built


def slope(points: list[tuple[int, float]]) -> float:
    """Return the least-squares slope of log(seconds) over log(nodes)."""
    xs, ys = [log(n) for n, _ in points], [log(max(s, 1e-6)) for _, s in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return covariance / sum((a - x) ** 2 for a in xs)


def scaling(shape: str, sizes: list[int]) -> tuple[tuple[Sheet, Sheet], dict[str, Any]]:
    """Measure one shape at all sizes: sheets of steps and of seconds, and the numbers."""
    target = cpu_target(cpu_isa(), 1)
    raw: list[dict[str, Any]] = []
    for size in sizes:
        taken, built = stages(SHAPES[shape](size), target, seconds)
        called, _ = stages(SHAPES[shape](size), target, steps)
        raw.append({"nodes": size, "steps": called, "seconds": taken, "built": built})
    slopes = {
        meter: {
            stage: slope([(r["nodes"], r[meter][stage]) for r in raw]) if len(raw) > 1 else 1.0
            for stage in (*STAGES, "sum")
        }
        for meter in ("steps", "seconds")
    }
    sheets = tuple(
        Sheet(f"{shape}: {title}", ("nodes", *STAGES, "sum", "kernels", "lines of C++"))
        for title in ("steps", "CPU seconds")
    )
    for meter, sheet in zip(slopes, sheets, strict=True):
        for r in raw:
            built = r["built"]
            row = (r["nodes"], *r[meter].values(), built["kernels"], built["lines of C++"])
            sheet.rows.append(row)
        sheet.rows.append(("slope", *slopes[meter].values(), "", ""))
    return (sheets[0], sheets[1]), {"sizes": raw, "slopes": slopes}


def main(arguments: list[str]) -> None:
    """Measure the chosen shapes and print a table each."""
    parser = argparse.ArgumentParser("bench/compiler.py")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--sizes", default="1000,5000,20000")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    chosen = parser.parse_args(arguments)
    console = Console(width=140)
    report: dict[str, Any] = {"environment": environment(), "shapes": {}}
    stages(blocks(50), cpu_target(cpu_isa(), 1), seconds)  # fills what is computed once a process
    steep: list[str] = []
    for shape in chosen.shapes.split(","):
        sheets, found = scaling(shape, [int(s) for s in chosen.sizes.split(",")])
        report["shapes"][shape] = found
        steep += [f"{shape}: {n} {k:.2f}" for n, k in found["slopes"]["steps"].items() if k > MOST]
        for sheet in sheets:
            sheet.print(console)
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    if steep:
        sys.exit(f"steps grow faster than nodes**{MOST}: {', '.join(steep)}")


if __name__ == "__main__":
    main(sys.argv[1:])
