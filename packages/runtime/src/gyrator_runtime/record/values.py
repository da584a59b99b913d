"""What a recording handles: tensors, sizes, kernels, and what it ends in."""

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen

from gyrator_runtime.native.load import Plan
from gyrator_runtime.native.program import IntTuple, KernelFunction, Layout, SizeArg, SizeProgram
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
    layout: Layout | None = None
    own: Layout | None = None
    """What the object in the register is, where that is known."""
    device: str = ""
    """Where it lies, where that is known."""
    pooled: bool = False
    """In a pool, which is freed as a whole."""

    @property
    def offset(self) -> PlanSize:
        """Bytes after the first element of the object in the register."""
        return 0 if self.layout is None else self.layout.offset

    @property
    def dtype(self) -> torch.dtype | None:
        """The element type, where it is known."""
        layout = self.layout or self.own
        return None if layout is None else layout.dtype


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


def size_of(size: PlanSize) -> AnySize:
    """Return a size of a plan as one that can be computed with."""
    match size:
        case int():
            return size
        case SizeArg(register):
            return Size((("arg", register),))
        case SizeProgram(code):
            return Size(code)


def layout_of(
    shape: tuple[AnySize, ...], strides: tuple[AnySize, ...], dtype: torch.dtype, offset: PlanSize
) -> Layout:
    """Return a layout as plans take it; `offset` in bytes."""
    sizes, steps = (tuple(plan_size(s) for s in t) for t in (shape, strides))
    return Layout(sizes, steps, dtype, offset)


def moved(offset: PlanSize, elements: AnySize, dtype: torch.dtype) -> PlanSize:
    """Return the byte offset of so many elements after another byte offset."""
    return plan_size(size_of(offset) + elements * dtype.itemsize)


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
