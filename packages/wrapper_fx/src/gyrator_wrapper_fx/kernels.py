"""The kernels of a graph module."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

KernelFunction = Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None]
"""`kernel(tensors, sizes)`: tensors in the order of `Kernel.parameters`, starting at their first
elements, then the values of `Kernel.sizes`. Results are written in place."""

NO_KERNELS: Mapping[str, KernelFunction] = MappingProxyType({})


class KernelTable(torch.nn.Module):
    """Kernels by name: the submodule `kernels` of a graph module that launches kernels.

    It is immutable, so copies of a graph module share it.
    """

    def __init__(self, kernels: Mapping[str, KernelFunction] = NO_KERNELS) -> None:
        super().__init__()
        self.functions: Mapping[str, KernelFunction] = MappingProxyType(dict(kernels))

    def forward(
        self, kernel: str, tensors: tuple[torch.Tensor, ...], sizes: tuple[int, ...]
    ) -> None:
        """Run one kernel. Raises LookupError for an unknown name."""
        if kernel not in self.functions:
            raise LookupError(f"this graph module has no kernel {kernel!r}")
        self.functions[kernel](tensors, sizes)

    def extra_repr(self) -> str:
        """Return the names of the kernels."""
        return ", ".join(self.functions)

    def __deepcopy__(self, memo: dict[int, object]) -> "KernelTable":
        return self
