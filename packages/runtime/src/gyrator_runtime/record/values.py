"""What a recording handles: tensors, sizes, kernels, and what it ends in."""

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen

from gyrator_runtime.native.load import Plan
from gyrator_runtime.native.program import IntTuple, KernelFunction, SizeArg, SizeProgram
from gyrator_runtime.native.program import Size as PlanSize


@frozen
class LoadedKernel:
    """A kernel that can be launched."""

    name: str
    function: KernelFunction
    """Address of a function `int64_t f(void *const *buffers, const int64_t *sizes)`, or what
    queues the kernel on its device."""
    checks: tuple[tuple[type[BaseException], str], ...] = ()
    """What a return of 1, 2, ... raises."""
    release_gil: bool = True


@frozen(eq=False)
class Handle:
    """A tensor of the program that is being recorded: a register, and where in it.

    `layout` is set for a tensor that lies in another one's memory: kernels need only the
    address, and a call gets a tensor made for it.
    """

    register: int
    offset: PlanSize = 0
    layout: tuple[tuple["Size | int", ...], tuple["Size | int", ...], torch.dtype] | None = None
    pooled: bool = False
    """In a pool, which is freed as a whole."""


@frozen(eq=False)
class Size:
    """An integer of the program that is being recorded; arithmetic gives another one."""

    code: tuple[tuple[str, int], ...]

    def _with(self, op: str, other: "Size | int", swap: bool = False) -> "Size":
        mine, theirs = self.code, code_of(other)
        return Size((*theirs, *mine, (op, 0)) if swap else (*mine, *theirs, (op, 0)))

    def __add__(self, other: "Size | int") -> "Size":
        return self._with("add", other)

    def __radd__(self, other: int) -> "Size":
        return self._with("add", other, swap=True)

    def __sub__(self, other: "Size | int") -> "Size":
        return self._with("sub", other)

    def __rsub__(self, other: int) -> "Size":
        return self._with("sub", other, swap=True)

    def __mul__(self, other: "Size | int") -> "Size":
        return self._with("mul", other)

    def __rmul__(self, other: int) -> "Size":
        return self._with("mul", other, swap=True)

    def __floordiv__(self, other: "Size | int") -> "Size":
        return self._with("floordiv", other)

    def __rfloordiv__(self, other: int) -> "Size":
        return self._with("floordiv", other, swap=True)

    def __mod__(self, other: "Size | int") -> "Size":
        return self._with("mod", other)

    def __rmod__(self, other: int) -> "Size":
        return self._with("mod", other, swap=True)

    def __neg__(self) -> "Size":
        return self._with("mul", -1)

    def __pow__(self, power: int) -> "Size":
        result = self
        for _ in range(power - 1):
            result = result * self
        return result


AnySize = Size | int


def code_of(size: AnySize) -> tuple[tuple[str, int], ...]:
    """Return the postfix program of a size."""
    return (("const", size),) if isinstance(size, int) else size.code


def plan_size(size: AnySize) -> PlanSize:
    """Return a size as plans take it."""
    if isinstance(size, int):
        return size
    if len(size.code) == 1:
        op, operand = size.code[0]
        return SizeArg(operand) if op == "arg" else operand
    return SizeProgram(size.code)


def size_tuple(sizes: tuple[AnySize, ...]) -> IntTuple:
    """Return sizes as plans take a tuple of them."""
    return IntTuple(tuple(plan_size(s) for s in sizes))


@frozen
class Recorded:
    """A finished recording: the plan, and which of its results are integers."""

    plan: Plan
    integers: tuple[bool, ...]


@frozen
class Subprogram:
    """A program that others call."""

    recorded: Recorded
    partition: Callable[[list[Any]], object]
    """Runs it as a partition, by replaying a device's graph where it may be captured."""
