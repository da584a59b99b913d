"""What a device can do, behind one interface; and the CPU.

Device type strings belong here and in target definitions, nowhere else.
"""

import contextlib
import functools
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from gyrator_ir.diagnostics import GyratorError, UnsupportedError
from gyrator_runtime.build import available_cores

__all__ = [
    "Allocator",
    "CpuDevice",
    "DeviceError",
    "DeviceInterface",
    "DeviceProperties",
    "MemoryInfo",
    "processor",
]

_LEVELS = {"x86_64": ("plain", "avx2", "avx512"), "aarch64": ("plain", "neon")}
"""Instruction set levels, the least first, by what `platform.machine` calls their machines."""
ISA_LEVELS = ("plain", "neon", "avx2", "avx512")
"""CPU instruction set levels that kernels are written for: of one machine, the least first."""

Allocator = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""`allocate(size, stride, dtype)`: an uninitialised tensor; sizes and strides in elements."""


class DeviceError(GyratorError):
    """A device was asked for something that it is not or does not have."""


@frozen
class DeviceProperties:
    """Facts about one device."""

    name: str
    arch: str  # of the CPU: an instruction set level
    cores: int
    total_memory: int  # bytes


@frozen
class MemoryInfo:
    """Bytes in all, bytes free, and bytes that this process holds on the device."""

    total: int
    free: int
    used: int


class DeviceInterface(ABC):
    """One type of device, for example all GPUs of one make. Stateless."""

    @property
    @abstractmethod
    def type(self) -> str:
        """The type as `torch.device` spells it."""

    @abstractmethod
    def count(self) -> int:
        """How many there are."""

    @abstractmethod
    def properties(self, index: int = 0) -> DeviceProperties:
        """Facts about device `index`; DeviceError where there is none."""

    @abstractmethod
    def memory(self, index: int = 0) -> MemoryInfo:
        """Memory of device `index` at this moment."""

    @abstractmethod
    def allocator(self) -> Allocator:
        """Return the quickest way to make an uninitialised tensor on the current device."""

    @abstractmethod
    def guard(self, index: int) -> contextlib.AbstractContextManager[object]:
        """Make device `index` the current one for the length of a block."""

    @abstractmethod
    def synchronize(self, index: int = 0) -> None:
        """Wait until device `index` is idle."""

    def supports_graphs(self) -> bool:
        """Whether a run can be captured and replayed."""
        return False

    def capturing(self) -> bool:
        """Whether work of the current stream is being captured now."""
        return False

    def queue(self, index: int = 0) -> int:
        """Return a number for the stream that work goes to now: work of one number is in order."""
        return 0

    def graph_pool(self) -> object:
        """Return memory that several captured runs share, for `capture`; None where each run has
        its own."""
        return None

    def capture(
        self, run: Callable[[], None], *, warm: bool = True, pool: object = None
    ) -> Callable[[], None]:
        """Capture `run` and return what replays it; UnsupportedError where not possible.

        With `warm`, `run` is run once before, for what is set up at the first use. `pool` is what
        `graph_pool` gave: runs that share it are replayed in the order of one stream.
        """
        raise UnsupportedError.of(
            "GY-DEVICE-002",
            f"device type {self.type!r} cannot capture graphs ({run!r})",
            help="switch graph capture off for this device",
        )


class CpuDevice(DeviceInterface):
    """The host processor. `isa` overrides what is found; it cannot exceed what there is."""

    def __init__(self, isa: str | None = None) -> None:
        self._isa = cpu_isa(isa)

    @property
    def type(self) -> str:
        """Return the host's device type."""
        return "cpu"

    @property
    def isa(self) -> str:
        """Instruction set level: one of `isa_levels`."""
        return self._isa

    def count(self) -> int:
        """Return 1."""
        return 1

    def properties(self, index: int = 0) -> DeviceProperties:
        """Facts about the host; DeviceError for an index other than 0."""
        self._check(index)
        return DeviceProperties(_model_name(), self._isa, available_cores(), _meminfo("MemTotal"))

    def memory(self, index: int = 0) -> MemoryInfo:
        """Memory of the host; `used` is the resident set of this process."""
        self._check(index)
        return MemoryInfo(_meminfo("MemTotal"), _meminfo("MemAvailable"), _resident())

    def allocator(self) -> Allocator:
        """Return torch's quick entry where it has one (0.4 us), else `torch.empty_strided`."""
        return host_allocator()

    def guard(self, index: int) -> contextlib.AbstractContextManager[object]:
        """Do nothing, for there is one host."""
        self._check(index)
        return contextlib.nullcontext()

    def synchronize(self, index: int = 0) -> None:
        """Do nothing: calls return when their work is done."""
        self._check(index)

    def _check(self, index: int) -> None:
        if index != 0:
            raise DeviceError.of("GY-DEVICE-001", f"there is no device {self.type}:{index}")


_OF_PROCESSOR = frozenset(
    {
        "vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags",
        "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
    }
)  # fmt: skip
"""What does not change from core to core and from moment to moment."""


def isa_levels(machine: str = "") -> tuple[str, ...]:
    """Return the levels of a machine, by default of this one, the least first."""
    return _LEVELS.get(machine or platform.machine(), ISA_LEVELS[:1])


def machine_of(isa: str) -> str:
    """Return the machine that has a level; this one for `plain`, which every machine has."""
    here = platform.machine()
    return next((m for m, has in _LEVELS.items() if isa in has and isa not in isa_levels()), here)


def cpu_isa(override: str | None = None) -> str:
    """Return the best of ISA_LEVELS that this CPU and torch have, read in process.

    `override` may ask for less; more than there is, or an unknown name, is a DeviceError
    (GY-DEVICE-004), for the kernels would die of an illegal instruction.
    """
    found = _isa_of_flags(cpu_flags())
    if override is None:
        return found
    levels = isa_levels()
    usable = levels[: levels.index(found) + 1]
    if override not in usable:
        raise DeviceError.of(
            "GY-DEVICE-004",
            f"this CPU cannot run instruction set level {override!r}",
            help=f"ask for one of {', '.join(usable)}",
        )
    return override


def host_allocator() -> Allocator:
    """Return `allocate(size, stride, dtype)` for host memory."""
    quick: Any = getattr(_guards(), "_empty_strided_cpu", None)
    if quick is None:
        return _empty_strided
    allocate: Allocator = quick
    return allocate


def _empty_strided(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _guards() -> object:
    return getattr(getattr(torch._C, "_dynamo", None), "guards", None)


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's features as /proc/cpuinfo names them; empty where it has none.

    The kernel leaves out what it does not save on a task switch, so a flag there is usable.
    """
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def processor() -> str:
    """Return what tells this CPU from another, as /proc/cpuinfo has it of the first core; empty
    where it has nothing."""
    found = []
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if not value:
                    break
                if name.strip() in _OF_PROCESSOR:
                    found.append(f"{name.strip()}: {value.strip()}")
    except OSError:
        pass
    return "\n".join(found)


def _isa_of_flags(flags: frozenset[str]) -> str:
    if "neon" in isa_levels():
        return "neon"  # no processor for Linux lacks it
    if not flags:
        # Not Linux on x86: torch has asked cpuid, though ATEN_CPU_CAPABILITY may lower its answer.
        capability = torch.backends.cpu.get_cpu_capability()
        return {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "plain")
    if not {"avx2", "fma", "f16c"} <= flags:
        return "plain"
    return "avx512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else "avx2"


def _model_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown"


def _meminfo(field: str) -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
