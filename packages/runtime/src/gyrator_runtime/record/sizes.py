"""Recording sizes."""

from collections.abc import Callable

import torch
from attrs import define

from gyrator_runtime.record.recording import Recording
from gyrator_runtime.record.values import AnySize, Handle, Size, code_of, plan_size


@define
class SizeInstructions(Recording):
    """Integers of a program."""

    def integer(self, value: Handle | AnySize) -> AnySize:
        """Return an integer argument, or a computed size, as a size held in a register."""
        if isinstance(value, Handle):
            return Size((("arg", value.register),))
        if isinstance(value, int) or len(value.code) == 1:
            return value
        return self._size_call(int, (plan_size(value),))

    def size_of(self, tensor: Handle, dim: int) -> Size:
        """Return a size of a tensor."""
        return self._size_call(torch.Tensor.size, (self._reg(tensor), dim))

    def stride_of(self, tensor: Handle, dim: int) -> Size:
        """Return a stride of a tensor, in elements."""
        return self._size_call(torch.Tensor.stride, (self._reg(tensor), dim))

    def minimum(self, first: AnySize, *others: AnySize) -> AnySize:
        """Return the smallest of some integers."""
        return _fold("min", first, others)

    def maximum(self, first: AnySize, *others: AnySize) -> AnySize:
        """Return the largest of some integers."""
        return _fold("max", first, others)

    def select(
        self,
        test: Callable[..., bool],
        symbols: tuple[AnySize, ...],
        a: AnySize | Callable[..., int],
        b: AnySize | Callable[..., int],
    ) -> Size:
        """Return `a` where a condition on sizes holds, else `b`.

        A function of the symbols is called only where its value is chosen.
        """
        sides = [s if callable(s) else None for s in (a, b)]
        sizes = tuple(0 if callable(s) else plan_size(s) for s in (a, b))

        def choose(x: int, y: int, *values: int) -> int:
            side, size = (sides[0], x) if test(*values) else (sides[1], y)
            return size if side is None else side(*values)

        return self._size_call(choose, (*sizes, *map(plan_size, symbols)))


def _fold(op: str, first: AnySize, others: tuple[AnySize, ...]) -> Size:
    code = code_of(first)
    for other in others:
        code = (*code, *code_of(other), (op, 0))
    return Size(code)
