"""Single kernels as functions, for host programs that are not run as plans."""

from collections.abc import Callable, Sequence
from typing import Any

from gyrator_runtime.native.program import Buffer, Launch, PlanProgram, SizeArg
from gyrator_runtime.plan.link import Linker


def launcher(
    linker: Linker, kernel: str, tensors: int, sizes: int
) -> Callable[[Sequence[Any], Sequence[int]], None]:
    """Return a kernel as a function of `tensors` tensors and `sizes` sizes: a plan with one
    launch."""
    count = tensors + sizes
    loaded = linker.kernels[kernel]
    launch = Launch(
        loaded.function,
        tuple(map(Buffer, range(tensors))),
        tuple(map(SizeArg, range(tensors, count))),
        loaded.checks,
        release_gil=True,
        name=kernel,
    )
    plan = linker.runner.plan(PlanProgram(count, count, (launch,), timed=linker.timed))
    linker.launches.append((kernel, plan, 0))

    def run(tensors: Sequence[Any], numbers: Sequence[int]) -> None:
        plan(*tensors, *numbers)

    return run
