"""Cache entries as bytes, and whole caches as files, for transfer to other machines.

Imported entries are executed: import only from sources that you trust to run programs as you.
"""

import contextlib
import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyrator_runtime.cache import Cache, CacheError, CacheKey, Entry

SCHEMA = 1
_LENGTH = struct.Struct("<Q")
_MACHINES_OWN = frozenset({"toolchain"})
"""Kinds of entries that describe a single machine."""


def packed(key: CacheKey, entry: Entry) -> bytes:
    """Return an entry as bytes for `unpack`."""
    files = {name: entry.read(name) for name in entry.files}
    head = {
        "schema": SCHEMA,
        "kind": key.kind,
        "key": key.hex,
        "fields": dict(key.fields),
        "files": [[n, len(d), hashlib.sha256(d).hexdigest()] for n, d in sorted(files.items())],
    }
    text = json.dumps(head, sort_keys=True).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *(files[n] for n in sorted(files))))


def unpack(cache: Cache, data: bytes) -> CacheKey:
    """Store a packed entry in a cache, unless it is already there.

    Raises:
        CacheError: GY-CACHE-012, for bytes that are not a complete entry.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        head = json.loads(data[_LENGTH.size :][:length])
        key, files = _read(head, data, _LENGTH.size + length)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise _no_entries("these bytes", str(error)) from error
    cache.put(key, files)
    return key


def _read(head: Mapping[str, Any], data: bytes, at: int) -> tuple[CacheKey, dict[str, bytes]]:
    kind, name = str(head["kind"]), str(head["key"])
    hexadecimal = len(name) == 64 and set(name) <= set("0123456789abcdef")
    if head["schema"] != SCHEMA or not kind.isalpha() or not hexadecimal:
        raise ValueError(f"an entry of schema {head['schema']}")
    files: dict[str, bytes] = {}
    for file, size, digest in head["files"]:
        part = data[at : at + size]
        at += size
        if len(part) != size or hashlib.sha256(part).hexdigest() != digest:
            raise ValueError(f"{file} is damaged")
        if not file or Path(file).name != file:
            raise ValueError(f"{file!r} is not a file name")
        files[file] = part
    return CacheKey(kind, name, {str(k): str(v) for k, v in head["fields"].items()}), files


def export_cache(cache: Cache, path: Path) -> int:
    """Write the machine-independent entries of a cache to a file; return their number."""
    from gyrator_runtime.package.archive import write_archive  # only exports need it

    members = {}
    for key in cache.stored():
        entry = cache.get(key)
        if entry is not None and key.kind not in _MACHINES_OWN:
            with contextlib.suppress(FileNotFoundError):  # pruned by another process
                members[f"{key.kind}/{key.hex}"] = packed(key, entry)
    write_archive(path, dict(sorted(members.items())))
    return len(members)


def import_cache(cache: Cache, path: Path) -> int:
    """Store the entries of a file written by `export_cache` in a cache; return their number.

    Raises:
        CacheError: GY-CACHE-012, when it is not such a file. Entries before the damage are kept.
    """
    from gyrator_runtime.package.archive import Archive, BrokenArchiveError

    with open(path, "rb") as file:
        try:
            archive = Archive(file)
            names = sorted(archive.names)
            for name in names:
                unpack(cache, archive.read(name))
        except BrokenArchiveError as error:
            raise _no_entries(str(path), str(error)) from error
    return len(names)


def _no_entries(source: str, reason: str) -> CacheError:
    help = "export the cache again, with the same version of Gyrator"
    return CacheError.of("GY-CACHE-012", f"no cache entries in {source}: {reason}", help=help)
