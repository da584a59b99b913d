"""The first call of a model in a process: with nothing cached, and with a first process's cache."""

import time
from collections.abc import Mapping
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from _clock import tree_cpu_seconds
from _subject import build, compiled, stepper, warm_up

DYNAMO = ("_compile.compile_inner", "OutputGraph.call_user_compiler")
AFTER_AOT: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "eager": (),
    "aot_eager": (),
    "gyrator": (),
    "inductor": (
        "_recursive_joint_graph_passes",
        "compile_fx.<locals>.fw_compiler_base",
        "compile_fx.<locals>.bw_compiler",
    ),
})  # fmt: skip
"""Names under which TorchInductor's own parts are timed; Gyrator tells its stages in its records.
TorchInductor's partition of the joint graph is AOTAutograd's minimum cut, as Gyrator's is."""

ON_FIRST_BACKWARD = ("compile_fx.<locals>.bw_compiler",)
"""What runs when gradients are first asked for, and so outside of the call of the backend."""


def first_call(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of the first call beyond those of a steady one, and where they went."""
    backend = arguments["backend"]
    model, inputs = build(arguments)
    start = time.perf_counter()
    if arguments["trivial_first"]:
        warm_up(backend)
    trivial = time.perf_counter() - start
    metrics = torch._dynamo.utils.compilation_time_metrics
    metrics.clear()
    records: list[Any] = []
    cpu, start = tree_cpu_seconds(), time.perf_counter()
    run = stepper(model, arguments["step"], compiled(model, backend, records))
    run(inputs)
    first, first_cpu = time.perf_counter() - start, tree_cpu_seconds() - cpu
    spent = {name: sum(seconds) for name, seconds in metrics.items()}
    compiles = len(metrics.get(DYNAMO[0], ()))
    steady, steady_cpu = [], []
    for _ in range(3):
        cpu, start = tree_cpu_seconds(), time.perf_counter()
        run(inputs)
        steady.append(time.perf_counter() - start)
        steady_cpu.append(tree_cpu_seconds() - cpu)
    whole, call_compiler = (spent.get(name, 0.0) for name in DYNAMO)
    stages: dict[str, float] = {}
    front = 0.0
    for record in records:
        for stage, seconds in record.seconds:
            stages[stage] = stages.get(stage, 0.0) + seconds
        if record.phase != "backward":
            front += sum(seconds for _, seconds in record.seconds)
    after = sum(stages.values()) + sum(spent.get(n, 0.0) for n in AFTER_AOT[backend])
    front += sum(spent.get(n, 0.0) for n in AFTER_AOT[backend] if n not in ON_FIRST_BACKWARD)
    return {
        "trivial_seconds": trivial,
        "seconds": first - median(steady),
        "cpu_seconds": max(0.0, first_cpu - median(steady_cpu)),
        "dynamo_seconds": whole - call_compiler,
        "aot_seconds": call_compiler - front,
        "after_aot_seconds": after,
        "stages": stages,
        "compiles": compiles,
        "cached": [r.cached for r in records],
        "kernels": sum(len(r.kernels) for r in records),
        "dynamo_metrics": {k: v for k, v in spent.items() if v > 0.01},
    }
