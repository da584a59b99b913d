"""Execution of the Python text of a host program instead of its plan, for debugging.

`gyrator_wrapper_python` writes the text.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import field

from gyrator_ir.define import define
from gyrator_runtime import host
from gyrator_runtime.host.outside import conform
from gyrator_runtime.plan.launcher import launcher
from gyrator_runtime.plan.link import Linker, Run

PREFIX = "program_"
"""Prefix of the names of the text's functions."""
ENTRY = f"{PREFIX}main"
FILE = "<gyrator host program"
"""Prefix of the text's file name in tracebacks."""


def load_text(
    text: str,
    linker: Linker,
    entry: str = ENTRY,
    *,
    runtime: Callable[..., TextRuntime] | None = None,
) -> Run:
    """Return the text of a host program as a callable of one list, which the call empties.

    Each run creates a new `rt` object for the text, an instance of `runtime`, by default
    `TextRuntime`.
    """
    name = f"{FILE} {hash(text):x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    functions: dict[str, Any] = {}
    exec(compile(text, name, "exec"), functions)
    runtime_class = runtime or TextRuntime
    launchers: dict[str, Callable[..., None]] = {}

    def run(args: list[Any]) -> Any:
        rt = runtime_class(linker, functions, launchers)
        values = tuple(args)
        args.clear()
        with torch.no_grad():
            return rt.run(entry, values)

    return run


@define(eq=False)
class TextRuntime:
    """The `rt` object of the text, with a method for each instruction."""

    linker: Linker
    functions: Mapping[str, Callable[..., Any]]
    _launchers: dict[str, Callable[..., None]] = field(factory=dict)
    """Launch functions of the kernels by name."""

    minimum, maximum = staticmethod(min), staticmethod(max)
    assert_no_nan = staticmethod(host.check_nan)
    assert_true = staticmethod(host.assert_true)
    separate = staticmethod(host.separate)
    stack = staticmethod(host.stack)
    copy = staticmethod(host.copy)
    read_scalar = staticmethod(host.read_scalar)
    tma_descriptor = staticmethod(host.tma_descriptor)
    device_guard = staticmethod(host.device_guard)
    profile_range = staticmethod(host.profile_range)
    typed, device = staticmethod(host.typed), staticmethod(torch.device)

    def run(self, entry: str, args: Sequence[Any]) -> Any:
        """Run the program."""
        return self.functions[entry](self, *args)

    def constant(self, key: str) -> Any:
        """Return a constant of the program."""
        return self.linker.constants[key]

    def conform(
        self, tensor: Any, sizes: Sequence[int], strides: Sequence[int], dtype: str, device: str,
        mend: str, name: str, what: str,
    ) -> torch.Tensor:  # fmt: skip
        """Check or convert a tensor from outside of the program; see `outside.conform`."""
        place = torch.device(device)
        return conform(tensor, sizes, strides, host.DTYPES[dtype], place, mend, name, what)

    def allocate(
        self, sizes: Sequence[int], strides: Sequence[int], dtype: str, device: str
    ) -> torch.Tensor:
        """Return a new uninitialised strided tensor."""
        return host.allocator(device)(sizes, strides, host.DTYPES[dtype])

    def pool(self, nbytes: int, device: str) -> torch.Tensor:
        """Return the memory of a pool."""
        return self.allocate((nbytes,), (1,), "u8", device)

    def from_pool(
        self, pool: torch.Tensor, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...],
        dtype: str,
    ) -> torch.Tensor:  # fmt: skip
        """Return a tensor at a byte offset of a pool."""
        return host.over_storage(pool, sizes, strides, host.DTYPES[dtype], offset)

    def view(
        self, source: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str,
        offset: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """Return a strided view of a tensor, at an `offset` in elements from its first one."""
        kind = host.DTYPES[dtype]
        return host.over_storage(source, sizes, strides, kind, offset * kind.itemsize)

    reuse = view

    def launch(self, kernel: str, tensors: Sequence[Any], sizes: Sequence[int]) -> None:
        """Run a kernel."""
        if kernel not in self._launchers:
            function = launcher(self.linker, kernel, len(tensors), len(sizes))
            self._launchers[kernel] = function
        self._launchers[kernel](tensors, sizes)

    def extern(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a dispatcher op."""
        return host.extern(target)(*args, **kwargs)

    def triton(
        self, kernel: str, grids: Sequence[tuple[int, ...]], arguments: dict[str, Any]
    ) -> None:
        """Launch a user-defined Triton kernel."""
        self.linker.user_kernels[kernel](list(grids), arguments)

    def wait_collective(self, tensor: torch.Tensor) -> None:
        """Wait for the collective that fills a tensor."""
        host.extern("_c10d_functional.wait_tensor.default")(tensor)

    def call_program(self, program: str, args: Sequence[Any]) -> Any:
        """Run a subprogram."""
        return self.functions[f"{PREFIX}{program}"](self, *args)

    call_partition = call_program
