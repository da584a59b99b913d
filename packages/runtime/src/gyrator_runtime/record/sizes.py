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
        a: AnySize,
        b: AnySize,
    ) -> Size:
        """Return `a` where a condition on sizes holds, else `b`."""
        sizes = tuple(plan_size(s) for s in (a, b, *symbols))
        return self._size_call(lambda x, y, *s: x if test(*s) else y, sizes)


def _fold(op: str, first: AnySize, others: tuple[AnySize, ...]) -> Size:
    code = code_of(first)
    for other in others:
        code = (*code, *code_of(other), (op, 0))
    return Size(code)
