"""Tensors as they were at one time, to notice when they have been written to."""

from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from gyrator_ir.define import frozen

_VERSION: Callable[[torch.Tensor], int] = attrgetter("_version")


@frozen(eq=False)
class Recorded:
    """Tensors with their version counters and addresses at one time."""

    tensors: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    addresses: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> "Recorded":
        """Record the state of tensors that are not of inference mode."""
        return cls(tuple(tensors), tuple(map(_VERSION, tensors)), _addresses(tensors))

    def match(self, tensors: Sequence[Any]) -> bool:
        """Return whether these are the same tensors, and have not been written to since."""
        if not all(map(is_, tensors, self.tensors)):
            return False
        try:
            versions = tuple(map(_VERSION, tensors))
        except RuntimeError:  # `swap_tensors` has made one a tensor of inference mode
            return False
        return versions == self.versions and _addresses(tensors) == self.addresses


def _addresses(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(map(torch.Tensor.data_ptr, tensors))
