"""Launching of user-defined Triton kernels from their source.

They use Triton's own launcher, which specialises a kernel for each kind of arguments on first use,
keeps the machine code in Triton's cache, and benchmarks the configurations of an autotuned kernel,
as in eager mode.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any

import torch
from attrs import field

from gyrator_ir.define import define
from gyrator_ir.user_kernel import defined_last
from gyrator_runtime.build import BuildError


@define(eq=False)
class UserKernelLauncher:
    """A kernel. On the first launch, Triton is imported and the source executed."""

    source: str
    parameters: tuple[str, ...]
    settings: Mapping[str, int] = field(factory=dict)
    """Options such as `num_warps`, in addition to those of the source's configurations."""
    _function: Any = field(default=None, init=False)

    def __call__(self, grids: Sequence[tuple[int, ...]], arguments: Mapping[str, Any]) -> None:
        """Queue the kernel.

        Args:
            grids: one grid, or one for each of the kernel's configurations, in their order.
            arguments: tensors, descriptors, numbers and compile-time constants, by name.

        Raises:
            BuildError: GY-BUILD-005, where Triton is not installed.
            ValueError: when there is neither one grid nor one per configuration.
        """
        function = self._function
        if function is None:
            function = self._function = _defined(self.source)
        # Positional where possible, because Triton's hooks do not see keyword arguments.
        named = dict(arguments)
        positional: list[Any] = []
        for name in self.parameters:
            if name not in named:
                break
            positional.append(named.pop(name))
        function[_grid(function, grids)](*positional, **named, **self.settings)


def _defined(source: str) -> Any:
    try:
        triton = importlib.import_module("triton")
    except ImportError as error:
        message = "a program launches a user-defined Triton kernel, and Triton is not installed"
        raise BuildError.of("GY-BUILD-005", message, help="`pip install triton`") from error
    return defined_last(source, {"triton": triton, "tl": triton.language})


def _grid(function: Any, grids: Sequence[tuple[int, ...]]) -> Any:
    """Return the grid, or a function that selects the grid of an autotuned kernel by its
    configuration."""
    if len(grids) == 1:
        return grids[0]
    configurations = tuple(getattr(function, "configs", ()))
    if len(configurations) != len(grids):
        raise ValueError(f"{len(grids)} grids for {len(configurations)} configurations")

    def choose(meta: Mapping[str, Any]) -> tuple[int, ...]:
        for configuration, grid in zip(configurations, grids, strict=True):
            if all(meta.get(k) == v for k, v in configuration.kwargs.items()):
                return grid
        raise ValueError("Triton chose a configuration that the kernel does not have")

    return choose


def with_scratch(plan: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return a program whose user-defined kernels can allocate scratch memory through Triton.

    Kernels that create descriptors on the device need it. The allocator that the user set for other
    code is not affected.
    """

    def run(args: list[Any]) -> Any:
        triton = importlib.import_module("triton")

        def inside() -> Any:
            triton.set_allocator(_allocate)
            return plan(args)

        return copy_context().run(inside)

    return run


def _allocate(size: int, _alignment: int, _stream: int | None) -> torch.Tensor:
    """Return memory on the current device. PyTorch's alignment exceeds that of any request."""
    place = torch.accelerator.current_accelerator()
    index = torch.accelerator.current_device_index()
    kind = None if place is None else torch.device(place.type, index)
    return torch.empty(size, dtype=torch.int8, device=kind)
