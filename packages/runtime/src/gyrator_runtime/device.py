"""The device interface, and its implementation for the CPU.

Device type strings occur only here and in target definitions.
"""

import contextlib
import functools
import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import torch

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError, UnsupportedError
from gyrator_runtime.build import available_cores

__all__ = [
    "CpuDevice",
    "DeviceError",
    "DeviceInterface",
    "DeviceProperties",
    "MemoryInfo",
    "processor",
]

_LEVELS = {"x86_64": ("plain", "avx2", "avx512"), "aarch64": ("plain", "neon")}
"""Instruction set levels in ascending order, by machine as named by `platform.machine`."""
ISA_LEVELS = ("plain", "neon", "avx2", "avx512")
"""CPU instruction set levels of kernels, in ascending order for each machine."""


class DeviceError(GyratorError):
    """A device does not exist or lacks a capability."""


@frozen
class DeviceProperties:
    """Properties of a device."""

    name: str
    arch: str  # for the CPU, an instruction set level
    cores: int
    total_memory: int  # bytes


@frozen
class MemoryInfo:
    """Memory of a device in bytes: in total, free, and used by this process."""

    total: int
    free: int
    used: int


class DeviceInterface(ABC):
    """One type of device, for example all GPUs of one vendor. Stateless."""

    @property
    @abstractmethod
    def type(self) -> str:
        """The device type as in `torch.device`."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of devices."""

    @abstractmethod
    def properties(self, index: int = 0) -> DeviceProperties:
        """Return the properties of device `index`. DeviceError if there is none."""

    @abstractmethod
    def memory(self, index: int = 0) -> MemoryInfo:
        """Return the current memory state of device `index`."""

    @abstractmethod
    def guard(self, index: int) -> contextlib.AbstractContextManager[object]:
        """Make device `index` current for the duration of a block."""

    @abstractmethod
    def synchronize(self, index: int = 0) -> None:
        """Wait until device `index` is idle."""

    def clock(self) -> Callable[[], float]:
        """Return the clock by which to time work on the device: what it returns are seconds."""
        return time.perf_counter

    def supports_graphs(self) -> bool:
        """Return whether a run can be captured and replayed."""
        return False

    def capturing(self) -> bool:
        """Return whether work on the current stream is being captured."""
        return False

    def queue(self, index: int = 0) -> int:
        """Return the number of the current stream. Work on the same stream runs in order."""
        return 0

    def graph_pool(self) -> object:
        """Return a memory pool that several captured runs share, for `capture`; None if each run
        has its own memory."""
        return None

    def capture(
        self, run: Callable[[], None], *, warm: bool = True, pool: object = None
    ) -> Callable[[], None]:
        """Capture `run` and return a function that replays it.

        With `warm`, `run` runs once before the capture, for lazy initialisation. `pool` is a result
        of `graph_pool`; runs that share it must be replayed on one stream.

        Raises:
            UnsupportedError: GY-DEVICE-002, when the device cannot capture graphs.
        """
        raise UnsupportedError.of(
            "GY-DEVICE-002",
            f"device type {self.type!r} cannot capture graphs ({run!r})",
            help="switch graph capture off for this device",
        )

    def _check(self, index: int) -> None:
        if not 0 <= index < self.count():
            raise DeviceError.of("GY-DEVICE-001", f"there is no device {self.type}:{index}")


class CpuDevice(DeviceInterface):
    """The host processor. `isa` selects a lower instruction set level than the detected one."""

    def __init__(self, isa: str | None = None) -> None:
        self._isa = cpu_isa(isa)

    @property
    def type(self) -> str:
        """Return the host's device type."""
        return "cpu"

    @property
    def isa(self) -> str:
        """The instruction set level, one of `isa_levels`."""
        return self._isa

    def count(self) -> int:
        """Return 1."""
        return 1

    def properties(self, index: int = 0) -> DeviceProperties:
        """Return the properties of the host. DeviceError for an index other than 0."""
        self._check(index)
        model = _fields("/proc/cpuinfo").get("model name", "unknown")
        return DeviceProperties(model, self._isa, available_cores(), _meminfo("MemTotal"))

    def memory(self, index: int = 0) -> MemoryInfo:
        """Return the memory of the host. `used` is the resident set of this process."""
        self._check(index)
        return MemoryInfo(_meminfo("MemTotal"), _meminfo("MemAvailable"), _resident())

    def guard(self, index: int) -> contextlib.AbstractContextManager[object]:
        """Do nothing: there is only one host."""
        self._check(index)
        return contextlib.nullcontext()

    def synchronize(self, index: int = 0) -> None:
        """Do nothing: host work is synchronous."""
        self._check(index)

    def clock(self) -> Callable[[], float]:
        """Return the time of the calling thread if this does all the work, since other processes
        do not delay that."""
        alone = torch.get_num_threads() == 1 and os.name == "posix"  # elsewhere it is coarse
        return time.thread_time if alone else time.perf_counter


_OF_PROCESSOR = frozenset(
    {
        "vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags",
        "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
    }
)  # fmt: skip
"""Fields of /proc/cpuinfo that are the same for all cores and constant over time."""


def isa_levels(machine: str = "") -> tuple[str, ...]:
    """Return the levels of a machine, by default this one, in ascending order."""
    return _LEVELS.get(machine or platform.machine(), ISA_LEVELS[:1])


def machine_of(isa: str) -> str:
    """Return the machine that a level belongs to; this one for `plain`, which every machine has."""
    this_machine = platform.machine()
    return next(
        (m for m, has in _LEVELS.items() if isa in has and isa not in isa_levels()), this_machine
    )


def cpu_isa(override: str | None = None) -> str:
    """Return the highest of ISA_LEVELS that this CPU and PyTorch support, without a subprocess.

    `override` selects a lower level.

    Raises:
        DeviceError: GY-DEVICE-004, when `override` is unknown or not supported, since kernels would
            fail with an illegal instruction.
    """
    best = _isa_of_flags(cpu_flags())
    if override is None:
        return best
    levels = isa_levels()
    usable = levels[: levels.index(best) + 1]
    if override not in usable:
        raise DeviceError.of(
            "GY-DEVICE-004",
            f"this CPU cannot run instruction set level {override!r}",
            help=f"ask for one of {', '.join(usable)}",
        )
    return override


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's features as named in /proc/cpuinfo; empty if there are none.

    The kernel lists only features whose state it saves on a task switch, so they are usable.
    """
    return frozenset(_fields("/proc/cpuinfo").get("flags", "").split())


def processor() -> str:
    """Return an identification of this CPU model from the first core in /proc/cpuinfo; empty if
    there is none."""
    fields = _fields("/proc/cpuinfo")
    return "\n".join(f"{n}: {value}" for n, value in fields.items() if n in _OF_PROCESSOR)


def _fields(path: str) -> dict[str, str]:
    """Return the fields that a file has before an empty line, such as those of the first core;
    none if it cannot be read."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError), open(path) as lines:
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                break
            fields[name.strip()] = value.strip()
    return fields


def _isa_of_flags(flags: frozenset[str]) -> str:
    if "neon" in isa_levels():
        return "neon"  # every aarch64 processor that runs Linux has it
    if not flags:
        # Not Linux on x86: PyTorch has queried cpuid, but ATEN_CPU_CAPABILITY may lower its answer.
        capability = torch.backends.cpu.get_cpu_capability()
        return {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "plain")
    if not {"avx2", "fma", "f16c"} <= flags:
        return "plain"
    return "avx512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else "avx2"


def _meminfo(field: str) -> int:
    amount = _fields("/proc/meminfo").get(field)
    if amount is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(amount.split()[0]) * 1024


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
