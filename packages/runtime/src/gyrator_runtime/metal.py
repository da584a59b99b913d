"""Metal kernels on the GPUs of Macs, compiled and launched by `torch.mps.compile_shader`.

A tensor's address says nothing there: PyTorch binds the memory of tensors, which it is handed.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from gyrator_ir.expr import Expr, Sym, evaluate, parse_expr, to_text
from gyrator_ir.source import TranslationUnit
from gyrator_runtime import host
from gyrator_runtime.artifact import Library
from gyrator_runtime.device import (
    Allocator,
    DeviceError,
    DeviceInterface,
    DeviceProperties,
    MemoryInfo,
)
from gyrator_runtime.native.kernels import TensorLaunch


class MetalDevice(DeviceInterface):
    """The one GPU that PyTorch drives by `torch.mps`."""

    def __init__(self, type: str) -> None:
        self._type = type

    @property
    def type(self) -> str:
        """Return the type as torch spells it."""
        return self._type

    def count(self) -> int:
        """How many there are."""
        return int(torch.mps.device_count())

    def properties(self, index: int = 0) -> DeviceProperties:
        """Facts about the device; torch tells no cores."""
        self._check(index)
        return DeviceProperties(self._type, "apple", 1, int(torch.mps.recommended_max_memory()))

    def memory(self, index: int = 0) -> MemoryInfo:
        """Memory of the device; `used` is what torch's allocator holds."""
        self._check(index)
        total, held = torch.mps.recommended_max_memory(), torch.mps.driver_allocated_memory()
        return MemoryInfo(total, max(total - held, 0), held)

    def allocator(self) -> Allocator:
        """Return `torch.empty_strided`."""

        def allocate(
            size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
        ) -> torch.Tensor:
            return torch.empty_strided(size, stride, dtype=dtype, device=self._type)

        return allocate

    def guard(self, index: int) -> contextlib.AbstractContextManager[object]:
        """Do nothing, for there is one device."""
        self._check(index)
        return contextlib.nullcontext()

    def synchronize(self, index: int = 0) -> None:
        """Wait until the device is idle."""
        self._check(index)
        torch.mps.synchronize()

    def _check(self, index: int) -> None:
        if not 0 <= index < self.count():
            raise DeviceError.of("GY-DEVICE-001", f"there is no device {self._type}:{index}")


@frozen(eq=False)
class MetalKernel(TensorLaunch):
    """A kernel of a compiled text."""

    function: Any
    """Takes tensors and integers, `threads` and `group_size`."""
    threads: int
    """Of a threadgroup."""
    groups: Callable[[Sequence[int]], int]
    """How many threadgroups run, of the kernel's sizes."""
    checks: bool

    def launch(self, tensors: Sequence[Any], offsets: Sequence[int], sizes: Sequence[int]) -> int:
        """Queue the kernel. One that checks indices is waited for: it says what it found."""
        groups = self.groups(sizes)
        if not groups:
            return 0
        given = [_from(t, at) for t, at in zip(tensors, offsets, strict=True)]
        found = []
        if self.checks:
            place = next(t.device for t in tensors if t is not None)
            found.append(torch.zeros(1, dtype=torch.int32, device=place))
        whole = (groups * self.threads, 1, 1)
        self.function(*given, *sizes, *found, threads=whole, group_size=(self.threads, 1, 1))
        return int(found[0]) if found else 0


def _from(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a tensor whose memory begins so many bytes after another one's."""
    if not offset:
        return tensor.detach()
    return host.over_storage(tensor, (1,), (1,), torch.uint8, offset)


@frozen(eq=False)
class MetalUnits:
    """Texts with how their kernels are launched: PyTorch compiles them when they are loaded."""

    units: tuple[TranslationUnit, ...]

    def libraries(self) -> tuple[Library, ...]:
        """Return what a cache entry keeps."""
        return tuple(Library(u.name, _stored(u), u.symbols, u.text) for u in self.units)

    def addresses(self) -> Mapping[str, MetalKernel]:
        """Compile, and return the kernels by symbol."""
        found: dict[str, MetalKernel] = {}
        for unit in self.units:
            found |= _loaded(_stored(unit).decode())
        return found


@frozen(eq=False)
class MetalLoader:
    """Hands texts to PyTorch."""

    @property
    def identity(self) -> bytes:
        """Nothing: entries of the cache hold text."""
        return b"metal"

    def submit(self, units: Sequence[TranslationUnit]) -> MetalUnits:
        """Take the units as they are."""
        return MetalUnits(tuple(units))


def load_kernels(path: Path, symbols: Sequence[str]) -> Mapping[str, MetalKernel]:
    """Compile what a cache entry holds."""
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
    found = {}
    for symbol, row in data["kernels"].items():
        names, groups = tuple(map(Sym, row["sizes"])), parse_expr(row["groups"])
        found[symbol] = MetalKernel(
            getattr(library, symbol),
            row["threads"],
            partial(_counted, groups, names),
            row["checks"],
        )
    return found


def _counted(groups: Expr, names: Sequence[Sym], sizes: Sequence[int]) -> int:
    return int(evaluate(groups, dict(zip(names, sizes, strict=True))))
