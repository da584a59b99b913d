"""Shared libraries: checked before they are mapped, and unmapped when unused."""

import contextlib
import errno
import functools
import os
import shutil
import struct
import sys
import tempfile
import weakref
from _ctypes import dlclose, dlopen, dlsym
from collections.abc import Callable, Generator
from itertools import count
from pathlib import Path
from typing import TypeVar

from gyrator_runtime.warn import warn

Loaded = TypeVar("Loaded")

_HEADER = "16sHHIQQQIHHHHHH"
_SEGMENT = "IIQQQQQQ"


class KernelAddress(int):
    """The address of a function. Its library stays mapped as long as this object is alive."""

    library: "SharedLibrary"


class SharedLibrary:
    """A mapped library. It is unmapped when this object and all its addresses are deleted.

    Several objects may map the same file; the last one unmaps it.
    """

    def __init__(self, path: Path) -> None:
        """Map the library. OSError if it is incomplete or does not load."""
        self._handle = _load(path)
        # At exit, other threads may still run its code.
        weakref.finalize(self, dlclose, self._handle).atexit = False

    def address(self, symbol: str) -> KernelAddress:
        """Return the address of a function. OSError if there is none of that name."""
        # ctypes.CDLL would create a callable for each function, which doubles the loading time.
        address = KernelAddress(dlsym(self._handle, symbol))
        address.library = self
        return address


def _load(path: Path) -> int:
    """Return the loader's handle of a library."""
    check_complete(path)
    return load_or_copy(path, lambda file: dlopen(file, os.RTLD_NOW | os.RTLD_LOCAL))


def load_or_copy(path: Path, load: Callable[[str], Loaded]) -> Loaded:
    """Return what `load` makes of a library's file, or of a copy of it, with a warning, if that
    fails. OSError or ImportError of the first attempt if all fail."""
    first: OSError | ImportError | None = None
    with contextlib.closing(_loadable_paths(path)) as paths:
        for candidate in paths:
            try:
                loaded = load(str(candidate))
            except (OSError, ImportError) as error:
                first = first or error
                continue
            if first is not None:
                _warn_of_copy(first)
            return loaded
    assert first is not None
    raise first


def _loadable_paths(path: Path) -> Generator[Path, None, None]:
    """Yield the path of a library, then paths of copies that exist as long as the iterator.

    The copies are needed if the library's file system is mounted noexec. Every path is unique,
    because the loader identifies loaded libraries by path.
    """
    yield path
    try:
        with tempfile.TemporaryDirectory(prefix="gyrator-") as folder:
            copy = Path(folder) / path.name
            shutil.copyfile(path, copy)
            yield copy
            if hasattr(os, "memfd_create"):
                with in_memory(path.read_bytes()) as memory:
                    yield memory
    except OSError:
        return


_IN_MEMORY = count()
_PROC_FOLDERS = "fd", "task"
"""Subfolders of a process in /proc, used as detours that give every in-memory file its own path."""


@contextlib.contextmanager
def in_memory(data: bytes) -> Generator[Path, None, None]:
    """Provide the path of an in-memory file for the duration of the block. No path is used twice.

    OSError if the system has no such files.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    with open(os.memfd_create("gyrator"), "wb", buffering=0) as file:
        file.write(data)
        number = next(_IN_MEMORY)
        detour = "".join(
            f"{_PROC_FOLDERS[number >> k & 1]}/../" for k in range(number.bit_length())
        )
        yield Path(f"/proc/self/{detour}fd/{file.fileno()}")


def _warn_of_copy(reason: Exception) -> None:
    """Warn, once, that libraries cannot be mapped from their folder."""
    _warn_once(str(reason).rpartition(":")[2].strip())


@functools.cache
def _warn_once(why: str) -> None:
    warn(
        "GY-CACHE-010",
        f"code in the cache folder cannot be run from there ({why}); copies of it are run",
        "set GYRATOR_CACHE_DIR to a folder on a file system that is not mounted noexec",
    )


def check_complete(path: Path) -> None:
    """Raise OSError for a truncated library, which would crash a process that maps it."""
    if sys.platform != "linux":
        return
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        needed = _needed_bytes(file.fileno())
    if not 0 < needed <= size:
        raise OSError(f"{path.name}: incomplete library ({size} of {needed or 'unknown'} bytes)")


def _needed_bytes(file: int) -> int:
    """Return the size that a library must have according to its headers; 0 if it is not ELF."""
    head = os.pread(file, 64, 0)
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return 0
    if head[4] != 2:  # 32-bit files are left to the loader
        return 64
    order = "<" if head[5] == 1 else ">"
    fields = struct.unpack(order + _HEADER, head)
    segments, sections = fields[5], fields[6]
    segment_size, segment_count, section_size, section_count = fields[9:13]
    needed: int = sections + section_size * section_count
    table = os.pread(file, segment_size * segment_count, segments)
    step = struct.calcsize(order + _SEGMENT)
    if not segment_count or segment_size != step or len(table) < step * segment_count:
        return 0
    for row in struct.iter_unpack(order + _SEGMENT, table):
        needed = max(needed, row[2] + row[5])
    return needed
