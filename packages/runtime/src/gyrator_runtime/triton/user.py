"""Launching Triton kernels that the user wrote, from their text.

They go through Triton's own launcher, which compiles a kernel for each kind of arguments when it
first sees it, keeps the machine code in Triton's cache, and measures the configurations of an
autotuned kernel, as it does for eager code.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any

import torch
from attrs import define, field

from gyrator_ir.user_kernel import defined_last
from gyrator_runtime.build import BuildError


@define(eq=False)
class UserKernelLauncher:
    """One kernel. Triton is imported, and the text run, at the first launch."""

    source: str
    parameters: tuple[str, ...]
    settings: Mapping[str, int] = field(factory=dict)
    """`num_warps` and the like, beside those of the text's configurations."""
    _function: Any = field(default=None, init=False)

    def __call__(self, grids: Sequence[tuple[int, ...]], arguments: Mapping[str, Any]) -> None:
        """Queue the kernel.

        Args:
            grids: one, or one for each of the kernel's configurations, in their order.
            arguments: by name: tensors, descriptors, numbers, and compile-time constants.

        Raises:
            BuildError: GY-BUILD-005, where Triton is not installed.
            ValueError: for neither one grid nor one a configuration.
        """
        function = self._function
        if function is None:
            function = self._function = _defined(self.source)
        # By position as far as that goes: Triton's hooks do not see keywords.
        given = dict(arguments)
        places: list[Any] = []
        for name in self.parameters:
            if name not in given:
                break
            places.append(given.pop(name))
        function[_grid(function, grids)](*places, **given, **self.settings)


def _defined(source: str) -> Any:
    try:
        triton = importlib.import_module("triton")
    except ImportError as error:
        said = "a program launches a Triton kernel that the user wrote, and Triton is not installed"
        raise BuildError.of("GY-BUILD-005", said, help="`pip install triton`") from error
    return defined_last(source, {"triton": triton, "tl": triton.language})


def _grid(function: Any, grids: Sequence[tuple[int, ...]]) -> Any:
    """Return a grid, or what chooses among those of an autotuned kernel by its configuration."""
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
    """Return a program whose users' kernels may ask Triton for memory on their device.

    A kernel that makes descriptors on the device needs some. The allocator that the user set for
    other code stays as it is.
    """

    def run(args: list[Any]) -> Any:
        triton = importlib.import_module("triton")

        def inside() -> Any:
            triton.set_allocator(_allocate)
            return plan(args)

        return copy_context().run(inside)

    return run


def _allocate(size: int, _alignment: int, _stream: int | None) -> torch.Tensor:
    """Return bytes on the current device; torch's are aligned to more than any kernel asks for."""
    place = torch.accelerator.current_accelerator()
    index = torch.accelerator.current_device_index()
    kind = None if place is None else torch.device(place.type, index)
    return torch.empty(size, dtype=torch.int8, device=kind)
