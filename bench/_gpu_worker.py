"""The process that times operations on a GPU: a line of JSON asks, a line of JSON answers.

Several such processes compile side by side. They time one after the other, since each holds a lock
while it does.
"""

import fcntl
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from _gpu_ops import DEVICE, OPS, GpuOp
from _gpu_survey import UNCAPTURED
from _overhead import twin
from _subject import BACKENDS, compiled
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from gyrator_conformance.process import line_writer

Run = Callable[[], Any]
BATCH_SECONDS = 4e-4
"""A graph holds as many calls as take so long."""
MOST_CALLS = 50
ROUNDS = 9
PROFILED_CALLS = 5


def measure(name: str, elements: int, dtype: str, lock: str, how: str) -> dict[str, Any]:
    """Return microseconds on the device a call by compiler, and what the operation has to do.

    `difference` is that of Gyrator's results from eager's, relative to these; `bytes` counts each
    operand and result once, `flops` those of products. `how`: "graph" or "profiler".
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    op = next(o for o in OPS if o.name == name)
    extent = op.extent(elements)
    inputs = [o.make(extent, getattr(torch, dtype)) for o in op.operands]
    runs = dict(_runs(op, inputs))
    results = {}
    for backend, run in runs.items():
        with torch.random.fork_rng(devices=[0]):
            torch.manual_seed(1)
            results[backend] = tree_leaves(run())
    row = {
        "extent": extent,
        "difference": _difference(results["gyrator"], results["eager"]),
        "bytes": sum(t.nbytes for t in tree_leaves([inputs, results["eager"]]) if _is_tensor(t)),
        "flops": 0 if "flexible" in name else _flops(runs["eager"]),
    }
    del results
    with _alone(lock):
        if how == "profiler":
            return row | {backend: _profiled(run) for backend, run in runs.items()}
        return row | _times(runs)


def _flops(run: Run) -> int:
    """Return the floating-point operations of products, which torch cannot count of all calls."""
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _runs(op: GpuOp, inputs: list[Any]) -> Iterator[tuple[str, Run]]:
    """Yield what runs the operation once, by compiler: with gradients, its results are these."""
    trained = [
        x.requires_grad_()
        for x, o in zip(inputs, op.operands, strict=True)
        if op.trained and o.trained and x.is_floating_point()
    ]
    given: list[torch.Tensor] = []
    for backend in BACKENDS:
        run = partial(compiled(twin(op.run), backend, []), *inputs)
        if not trained:
            yield backend, run
            continue
        if not given:
            given = [torch.randn_like(r) for r in _differentiable(run())]
        yield backend, partial(_gradients, run, trained, given)


def _differentiable(results: Any) -> list[torch.Tensor]:
    return [r for r in tree_leaves(results) if _is_tensor(r) and r.requires_grad]


def _gradients(run: Run, inputs: list[torch.Tensor], given: list[torch.Tensor]) -> Any:
    return torch.autograd.grad(_differentiable(run()), inputs, given, allow_unused=True)


def _difference(mine: list[Any], theirs: list[Any]) -> float:
    """Return the largest relative difference of a result, in its Euclidean norm."""
    found = 0.0
    for got, want in zip(mine, theirs, strict=True):
        if want is not None and want.is_floating_point():
            off = (got.float() - want.float()).norm() / want.float().norm().clamp(min=1e-12)
            found = max(found, float(off))
    return found


@contextmanager
def _alone(path: str) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _times(runs: Mapping[str, Run]) -> dict[str, float]:
    """Return the least time of rounds in which all take turns, in microseconds a call."""
    replays = {name: _captured(run) for name, run in runs.items()}
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, (replay, calls) in replays.items():
            least[name] = min(least[name], _elapsed(replay) / calls)
    return least


def _captured(run: Run) -> tuple[Run, int]:
    """Return what replays calls from a device graph, and how many calls it replays.

    A capture that fails leaves torch's random generator unusable: the process ends then.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    calls = 1
    while True:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(calls):
                    run()
        except RuntimeError as error:  # something in it waits for the device
            sys.exit(f"{UNCAPTURED}: {error}".partition("\n")[0])
        graph.replay()
        taken = min(_elapsed(graph.replay) for _ in range(3)) / calls
        wanted = min(MOST_CALLS, int(BATCH_SECONDS * 1e6 / taken))
        if calls > 1 or wanted <= 1:
            return graph.replay, calls
        calls = wanted


def _elapsed(replay: Run) -> float:
    """Return microseconds between events before and after."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1e3


def _profiled(run: Run) -> float:
    """Return microseconds a call that the profiler saw on the device."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED_CALLS):
            run()
        torch.cuda.synchronize()
    return sum(e.device_time_total for e in found.key_averages()) / PROFILED_CALLS


def serve() -> None:
    """Answer requests until the input ends."""
    write = line_writer()
    for line in sys.stdin:
        try:
            row = measure(**json.loads(line))
        except Exception as error:  # a survey goes on with the next operation
            row = {"wrong": f"{type(error).__name__}: {error}".partition("\n")[0][:300]}
            torch.cuda.empty_cache()
        write(json.dumps(row))


if __name__ == "__main__":
    torch.empty(0, device=DEVICE)
    serve()
