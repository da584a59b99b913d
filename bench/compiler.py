"""How the Python time of Gyrator's stages grows with the graph: 1,000 to 20,000 nodes.

    nox -s bench -- compiler [--shapes chain,wide,blocks] [--sizes 1000,5000,20000] [--json FILE]

Prints the CPU seconds of each stage and the slope of the log-log line through them; 1 is linear.
"""

import argparse
import json
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


SHAPES: Mapping[str, Callable[[int], GraphModule]] = MappingProxyType(
    {"chain": chain, "wide": wide, "blocks": blocks}
)


def stage_seconds(gm: GraphModule, target: Target) -> tuple[dict[str, float], dict[str, int]]:
    """Return the CPU seconds of each stage, and how much each built."""
    targets = {"cpu": target}
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        start = time.thread_time()
        result = work()
        seconds[stage] = time.thread_time() - start
        return result

    program = timed("lower", lambda: lower(gm, LoweringOptions(), targets))
    planned = timed("schedule", lambda: schedule(program, SchedulerOptions(), targets))
    host = timed("host", lambda: plan_host(planned, SchedulerOptions(), targets))
    units = timed("emit", lambda: CppBackend().emit(host.kernels, host.facts, host.origins, target))
    text = timed("wrap", lambda: PythonWrapper().emit(host)).text
    built = {
        "loop operations": len(program.operations),
        "kernels": len(host.kernels),
        "host instructions": len(host.instructions),
        "lines of C++": sum(u.text.count("\n") for u in units),
        "lines of Python": text.count("\n"),
    }
    return seconds, built


def slope(points: list[tuple[int, float]]) -> float:
    """Return the least-squares slope of log(seconds) over log(nodes)."""
    xs, ys = [log(n) for n, _ in points], [log(max(s, 1e-6)) for _, s in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return covariance / sum((a - x) ** 2 for a in xs)


def scaling(shape: str, sizes: list[int]) -> tuple[Sheet, list[dict[str, Any]]]:
    """Measure one shape at all sizes."""
    target = cpu_target(cpu_isa(), 1)
    sheet = Sheet(f"{shape}: CPU seconds", ("nodes", *STAGES, "sum", "kernels", "lines of C++"))
    raw: list[dict[str, Any]] = []
    for size in sizes:
        seconds, built = stage_seconds(SHAPES[shape](size), target)
        seconds["sum"] = sum(seconds.values())
        raw.append({"nodes": size, "seconds": seconds, "built": built})
        sheet.rows.append((size, *seconds.values(), built["kernels"], built["lines of C++"]))
    if len(sizes) > 1:
        slopes = [
            slope([(size, r["seconds"][stage]) for size, r in zip(sizes, raw, strict=True)])
            for stage in (*STAGES, "sum")
        ]
        sheet.rows.append(("slope", *slopes, "", ""))
    return sheet, raw


def main(arguments: list[str]) -> None:
    """Measure the chosen shapes and print a table each."""
    parser = argparse.ArgumentParser("bench/compiler.py")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--sizes", default="1000,2000,5000,10000,20000")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    chosen = parser.parse_args(arguments)
    console = Console(width=140)
    report: dict[str, Any] = {"environment": environment(), "shapes": {}}
    stage_seconds(blocks(50), cpu_target(cpu_isa(), 1))  # fills what is computed once a process
    for shape in chosen.shapes.split(","):
        sheet, report["shapes"][shape] = scaling(shape, [int(s) for s in chosen.sizes.split(",")])
        sheet.print(console)
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
