"""Metal kernels on Mac GPUs, compiled and launched by `torch.mps.compile_shader`.

Kernels receive tensors rather than addresses, because PyTorch binds their memory.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gyrator_ir.define import frozen
from gyrator_ir.expr import Expr, Sym, evaluate, parse_expr, to_text
from gyrator_ir.source import TranslationUnit
from gyrator_runtime import host
from gyrator_runtime.build import Library
from gyrator_runtime.device import DeviceInterface, DeviceProperties, MemoryInfo
from gyrator_runtime.native.kernels import TensorLaunch


class MetalDevice(DeviceInterface):
    """The GPU that `torch.mps` supports."""

    def __init__(self, type: str) -> None:
        self._type = type

    @property
    def type(self) -> str:
        """The device type as in `torch.device`."""
        return self._type

    def count(self) -> int:
        """Return the number of devices."""
        return int(torch.mps.device_count())

    def properties(self, index: int = 0) -> DeviceProperties:
        """Return the properties of the device. PyTorch does not report the number of cores."""
        self._check(index)
        return DeviceProperties(self._type, "apple", 1, int(torch.mps.recommended_max_memory()))

    def memory(self, index: int = 0) -> MemoryInfo:
        """Return the memory of the device. `used` is the memory of PyTorch's allocator."""
        self._check(index)
        total, used = torch.mps.recommended_max_memory(), torch.mps.driver_allocated_memory()
        return MemoryInfo(total, max(total - used, 0), used)

    def guard(self, index: int) -> contextlib.AbstractContextManager[object]:
        """Do nothing: there is only one device."""
        self._check(index)
        return contextlib.nullcontext()

    def synchronize(self, index: int = 0) -> None:
        """Wait until the device is idle."""
        self._check(index)
        torch.mps.synchronize()


@frozen(eq=False)
class MetalKernel(TensorLaunch):
    """A compiled kernel."""

    function: Any
    """The function of PyTorch's shader library."""
    threads: int
    """Threads per threadgroup."""
    groups: Callable[[Sequence[int]], int]
    """Returns the number of threadgroups from the kernel's sizes."""
    checks: bool

    def launch(self, tensors: Sequence[Any], offsets: Sequence[int], sizes: Sequence[int]) -> int:
        """Queue the kernel. If it checks indices, wait for it and return the number of a failed
        check."""
        groups = self.groups(sizes)
        if not groups:
            return 0
        arguments = [_from(t, at) for t, at in zip(tensors, offsets, strict=True)]
        failure = []
        if self.checks:
            place = next(t.device for t in tensors if t is not None)
            failure.append(torch.zeros(1, dtype=torch.int32, device=place))
        total_threads = (groups * self.threads, 1, 1)
        self.function(
            *arguments, *sizes, *failure, threads=total_threads, group_size=(self.threads, 1, 1)
        )
        return int(failure[0]) if failure else 0


def _from(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a tensor that starts at a byte offset in the memory of another one."""
    if not offset:
        return tensor.detach()
    return host.over_storage(tensor, (1,), (1,), torch.uint8, offset)


@frozen(eq=False)
class MetalUnits:
    """Source texts with launch parameters. PyTorch compiles them on loading."""

    units: tuple[TranslationUnit, ...]

    def libraries(self) -> tuple[Library, ...]:
        """Return the libraries for a cache entry."""
        return tuple(Library(u.name, _stored(u), u.symbols, u.text) for u in self.units)

    def addresses(self) -> Mapping[str, MetalKernel]:
        """Compile the kernels and return them by symbol."""
        kernels: dict[str, MetalKernel] = {}
        for unit in self.units:
            kernels |= _loaded(_stored(unit).decode())
        return kernels


@frozen(eq=False)
class MetalLoader:
    """The builder of Metal kernels. PyTorch does the actual compilation."""

    @property
    def identity(self) -> bytes:
        """A constant, because cache entries contain source text."""
        return b"metal"

    def submit(self, units: Sequence[TranslationUnit]) -> MetalUnits:
        """Return the units unchanged."""
        return MetalUnits(tuple(units))


def load_kernels(path: Path, symbols: Sequence[str]) -> Mapping[str, MetalKernel]:
    """Compile the kernels of a cache entry."""
    return _loaded(path.read_text(encoding="utf-8"))


def _stored(unit: TranslationUnit) -> bytes:
    rows = {}
    for source in unit.kernels:
        sizes = [a.name for a in source.arguments if a.type.endswith("&")]
        rows[source.symbol] = {
            "threads": dict(source.candidates[0].values)["THREADS"],
            "sizes": sizes,
            "groups": to_text(source.grid[0]),
            "checks": bool(source.checks),
        }
    return json.dumps({"text": unit.text, "kernels": rows}, sort_keys=True).encode()


def _loaded(stored: str) -> Mapping[str, MetalKernel]:
    data = json.loads(stored)
    library = torch.mps.compile_shader(data["text"])
    kernels = {}
    for symbol, row in data["kernels"].items():
        names, groups = tuple(map(Sym, row["sizes"])), parse_expr(row["groups"])
        kernels[symbol] = MetalKernel(
            getattr(library, symbol),
            row["threads"],
            partial(_counted, groups, names),
            row["checks"],
        )
    return kernels


def _counted(groups: Expr, names: Sequence[Sym], sizes: Sequence[int]) -> int:
    return int(evaluate(groups, dict(zip(names, sizes, strict=True))))
