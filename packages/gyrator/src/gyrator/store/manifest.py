"""The manifest of a compiled program, stored with its plan and its kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import asdict, field, frozen

from gyrator.reports.records import ExternRecord, KernelRecord, PartitionRecord, StorageRecord
from gyrator_runtime.native import BuiltKernel


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
    def from_json(cls, text: str) -> ProgramManifest:
        """Read the manifest of a stored program. Raises TypeError or KeyError if it is invalid."""
        row = json.loads(text)
        row["kernels"] = tuple(_build(KernelRecord, k) for k in row["kernels"])
        row["externs"] = tuple(_build(ExternRecord, e) for e in row["externs"])
        row["built"] = tuple(_build(BuiltKernel, k) for k in row["built"])
        row["partitions"] = tuple(_build(PartitionRecord, p) for p in row["partitions"])
        row["storages"] = tuple(_build(StorageRecord, s) for s in row["storages"])
        row["user_kernels"] = tuple(_build(StoredUserKernel, k) for k in row["user_kernels"])
        row["parts"] = {name: _build(Captured, p) for name, p in row["parts"].items()}
        for name, kind in (("compiled", CompiledHost), ("graph", Captured)):
            row[name] = None if row[name] is None else _build(kind, row[name])
        manifest: ProgramManifest = _build(cls, row)
        return manifest


def _build(kind: type[Any], row: Mapping[str, Any]) -> Any:
    return kind(**{name: _frozen(value) for name, value in row.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
