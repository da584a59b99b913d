"""The manifest of a compiled program, stored with its plan and its kernels."""

import json
from collections.abc import Mapping

from attrs import asdict, field

from gyrator.reports.records import ExternRecord, KernelRecord, PartitionRecord, StorageRecord
from gyrator_ir.define import frozen
from gyrator_runtime.native import BuiltKernel
from gyrator_runtime.typed_json import read


@frozen
class StoredUserKernel:
    """A user's Triton kernel, as launched by `gyrator_runtime.triton.user`."""

    key: str
    source: str
    parameters: tuple[str, ...]
    settings: tuple[tuple[str, int], ...]


@frozen
class Captured:
    """A program, or a partition of one, that may be captured as a device graph."""

    device: str
    """The device type."""
    index: int
    mutated: tuple[int, ...]
    """Indices of the arguments that it writes to."""


@frozen
class CompiledHost:
    """The calling convention of a host program in C++."""

    parameters: str
    """One letter per parameter: see `gyrator.wrappers.cpp.calling`."""
    results: tuple[int, ...]
    """The number of results and the nesting of lists among them."""
    kernels: tuple[tuple[str, int, int], ...]
    """Name, tensor count and size count of each kernel."""
    written: tuple[int, ...]
    """Indices of the parameters that must not be replaced by a copy."""
    entry: str
    parts: tuple[str, ...]
    """Symbols of the functions that the entry calls through a table."""


@frozen
class ProgramManifest:
    """A compiled program, except its plan, its text and its libraries."""

    nodes: int
    """Calls in the ATen graph."""
    launches: int
    """Kernel launches in one run."""
    kernels: tuple[KernelRecord, ...]
    externs: tuple[ExternRecord, ...]
    built: tuple[BuiltKernel, ...]
    constants: tuple[str, ...]
    """Keys of the tensors that it reads from the graph module."""
    language: str
    """The language of the text: `python`, `c++` or `fx`. A program in `python` runs as a plan."""
    partitions: tuple[PartitionRecord, ...] = ()
    """The partitions that device graphs capture, and the rest."""
    storages: tuple[StorageRecord, ...] = ()
    """Its allocations."""
    user_kernels: tuple[StoredUserKernel, ...] = ()
    compiled: CompiledHost | None = None
    """The calling convention of a program in C++."""
    graph: Captured | None = None
    """Set if the whole program can be captured."""
    parts: Mapping[str, Captured] = field(factory=dict)
    """The partitions that can be captured, by name."""
    home: int | None = None
    """The index of the device to make current while it runs; None for the CPU."""

    def to_json(self) -> str:
        """Return text that `from_json` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "ProgramManifest":
        """Read the manifest of a stored program. Raises TypeError or ValueError if it is
        invalid."""
        return read(cls, json.loads(text))
