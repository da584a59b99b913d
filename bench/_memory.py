"""Peak memory of one step, from the profiler's events of torch's CPU allocator."""

import gc
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from _subject import BACKENDS, build, compiled, stepper

from gyrator.frontend.eager_if_faster import peak_bytes


def known_case() -> bool:
    """Tell whether the method finds 6 MB where 4 and 2 are held, the 4 freed, and 1 allocated."""

    def run() -> None:
        first = torch.empty(1_000_000)
        second = torch.empty(500_000)
        del first
        torch.empty(250_000)
        del second

    return peak_bytes(run) == 6_000_000


def peak_of(run: Callable[[], object]) -> int:
    """Return the peak of a call in bytes."""
    if not known_case():
        raise RuntimeError("the profiler's memory events do not add up")
    gc.collect()
    return peak_bytes(run)


def peak_memory(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the peak of one step by backend, gradients not yet allocated before it."""
    model, inputs = build(arguments)
    peaks = {}
    for backend in BACKENDS:
        twin = deepcopy(model)
        step = stepper(twin, arguments["step"], compiled(twin, backend, []))
        for _ in range(2):
            step(inputs)
        twin.zero_grad(set_to_none=True)
        peaks[backend] = peak_of(partial(step, inputs))
        del twin, step
        torch._dynamo.reset()
    return {"peak_bytes": peaks}
