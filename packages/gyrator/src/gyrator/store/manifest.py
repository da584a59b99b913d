"""What is stored about a compiled program beside its plan and its kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import asdict, field, frozen

from gyrator.reports.records import ExternRecord, KernelRecord, PartitionRecord, StorageRecord
from gyrator_runtime.native import BuiltKernel


@frozen
class StoredUserKernel:
    """A user's Triton kernel, as `gyrator_runtime.triton.user` launches it."""

    key: str
    source: str
    parameters: tuple[str, ...]
    settings: tuple[tuple[str, int], ...]


@frozen
class Captured:
    """A program, or a part of one, for which a device's graph may stand."""

    device: str
    """The type."""
    index: int
    mutated: tuple[int, ...]
    """Which arguments it writes to."""


@frozen
class CompiledHost:
    """How a host program in C++ is called."""

    parameters: str
    """A letter for each: see `gyrator.wrappers.cpp.calling`."""
    results: tuple[int, ...]
    """How many there are and how lists of them nest."""
    kernels: tuple[tuple[str, int, int], ...]
    """Name, tensors and sizes of each."""
    written: tuple[int, ...]
    """Places of the parameters that may not be replaced by a copy."""
    entry: str
    parts: tuple[str, ...]
    """Symbols of the functions that the entry finds through a table."""


@frozen
class ProgramManifest:
    """A compiled program but for its plan, its text and its libraries."""

    nodes: int
    """Calls in the ATen graph."""
    launches: int
    """Kernel launches in one run."""
    kernels: tuple[KernelRecord, ...]
    externs: tuple[ExternRecord, ...]
    built: tuple[BuiltKernel, ...]
    constants: tuple[str, ...]
    """Keys of the tensors that it takes from the graph module."""
    language: str
    """`python`, `c++` or `fx`: what the text is in. A program in `python` runs as a plan."""
    partitions: tuple[PartitionRecord, ...] = ()
    """What device graphs capture, and what they do not."""
    storages: tuple[StorageRecord, ...] = ()
    """What it allocates."""
    user_kernels: tuple[StoredUserKernel, ...] = ()
    compiled: CompiledHost | None = None
    """For a program in C++."""
    graph: Captured | None = None
    """Where the whole program can be captured."""
    parts: Mapping[str, Captured] = field(factory=dict)
    """The parts that can be captured, by name."""
    home: int | None = None
    """The number of the device to make current while it runs; None for the host's."""

    def to_json(self) -> str:
        """Return what `from_json` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ProgramManifest:
        """Return the manifest of a stored program. TypeError or KeyError where it is none."""
        row = json.loads(text)
        row["kernels"] = tuple(_made(KernelRecord, k) for k in row["kernels"])
        row["externs"] = tuple(_made(ExternRecord, e) for e in row["externs"])
        row["built"] = tuple(_made(BuiltKernel, k) for k in row["built"])
        row["partitions"] = tuple(_made(PartitionRecord, p) for p in row["partitions"])
        row["storages"] = tuple(_made(StorageRecord, s) for s in row["storages"])
        row["user_kernels"] = tuple(_made(StoredUserKernel, k) for k in row["user_kernels"])
        row["parts"] = {name: _made(Captured, p) for name, p in row["parts"].items()}
        for name, kind in (("compiled", CompiledHost), ("graph", Captured)):
            row[name] = None if row[name] is None else _made(kind, row[name])
        found: ProgramManifest = _made(cls, row)
        return found


def _made(kind: type[Any], row: Mapping[str, Any]) -> Any:
    return kind(**{name: _frozen(value) for name, value in row.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
