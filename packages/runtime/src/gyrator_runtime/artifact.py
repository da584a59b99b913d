"""A compiled program as a cache entry: its plan, kernel libraries, manifest and text.

Loading runs no pass and no compiler and reads nothing outside the entry, so a cache folder can be
moved. The format is JSON and text; nothing is unpickled.
"""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.build import Library, load_library
from gyrator_runtime.cache import Cache, CacheKey, Entry
from gyrator_runtime.device import ISA_LEVELS, cpu_isa
from gyrator_runtime.native.kernels import KernelFunction

__all__ = ["Artifact", "ArtifactError", "LoadedArtifact", "load_artifact", "save_artifact"]

SCHEMA = 4

_INDEX = "artifact.json"
_HOST = "host.py"
_PLAN = "plan.json"
_MANIFEST = "program.json"


class ArtifactError(GyratorError):
    """A stored program cannot be used on this machine or with this version."""


LibraryLoader = Callable[[Path, Sequence[str]], Mapping[str, KernelFunction]]
"""`load(file, symbols)`: returns the function of each symbol; see `KernelSource`."""

NO_LOADERS: Mapping[str, LibraryLoader] = MappingProxyType({})


@frozen
class Artifact:
    """A complete compiled program."""

    host_source: str
    """The host program in readable form."""
    plan: str
    """The host program in executable form, a `StoredPlan`; empty for a C++ host program."""
    libraries: tuple[Library, ...]
    manifest: str
    """JSON whose contents the umbrella package defines."""


@frozen
class LoadedArtifact:
    """A stored program in memory: see `Artifact`."""

    host_source: str
    plan: str
    symbols: Mapping[str, KernelFunction]
    """Its kernels: addresses, or objects that queue them on a device."""
    manifest: str
    entry: Entry


def save_artifact(cache: Cache, key: CacheKey, artifact: Artifact) -> Entry:
    """Store `artifact` under `key`."""
    files: dict[str, bytes] = {
        _HOST: artifact.host_source.encode(),
        _PLAN: artifact.plan.encode(),
        _MANIFEST: artifact.manifest.encode(),
    }
    rows: list[dict[str, object]] = []
    for number, library in enumerate(artifact.libraries):
        file = f"lib{number}.so"
        files[file] = library.data
        files[f"lib{number}.cpp"] = library.source.encode()
        names = {"name": library.name, "device": library.device}
        rows.append({**names, "file": file, "symbols": list(library.symbols)})
    index = {
        "schema": SCHEMA,
        "machine": platform.machine(),
        "isa": max(
            (x.isa for x in artifact.libraries), key=ISA_LEVELS.index, default=ISA_LEVELS[0]
        ),
        "libraries": rows,
    }
    files[_INDEX] = json.dumps(index, sort_keys=True).encode()
    return cache.put(key, files)


def load_artifact(
    cache: Cache, key: CacheKey, loaders: Mapping[str, LibraryLoader] = NO_LOADERS
) -> LoadedArtifact | None:
    """Return the program stored under `key` with its kernels loaded, or None if there is none.

    `loaders` maps device types to the loaders of their libraries; other libraries are mapped as
    shared libraries.

    Raises:
        ArtifactError: GY-CACHE-004, when it was built for an incompatible machine.
        BuildError: GY-BUILD-004, when a library does not load.
    """
    entry = cache.get(key)
    if entry is None:
        return None
    index = json.loads(entry.read(_INDEX))
    _check_machine(index)
    symbols: dict[str, KernelFunction] = {}
    for row in index["libraries"]:
        load = loaders.get(row["device"], load_library)
        symbols.update(load(entry.file(row["file"]), row["symbols"]))
    host, plan, manifest = (entry.read(name).decode() for name in (_HOST, _PLAN, _MANIFEST))
    return LoadedArtifact(host, plan, symbols, manifest, entry)


def _check_machine(index: Mapping[str, Any]) -> None:
    reason = ""
    if index["schema"] != SCHEMA:
        reason = f"schema {index['schema']}, this version reads {SCHEMA}"
    elif index["machine"] != platform.machine():
        reason = f"built for {index['machine']}, this is {platform.machine()}"
    elif ISA_LEVELS.index(index["isa"]) > ISA_LEVELS.index(cpu_isa()):
        reason = f"built for {index['isa']}, this CPU has {cpu_isa()}"
    if reason:
        raise ArtifactError.of(
            "GY-CACHE-004", f"a stored program does not fit: {reason}", help="compile"
        )
