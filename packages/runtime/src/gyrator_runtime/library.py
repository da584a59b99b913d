"""Shared libraries: looked through before they are mapped, unmapped when nothing uses them."""

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
from collections.abc import Generator
from itertools import count
from pathlib import Path

from gyrator_runtime.warn import warn

_HEADER = "16sHHIQQQIHHHHHH"
_SEGMENT = "IIQQQQQQ"


class KernelAddress(int):
    """The address of a function. Its library stays mapped as long as this object lives."""

    library: "SharedLibrary"


class SharedLibrary:
    """A library that is mapped into the process, until it and all its addresses are forgotten.

    The same file may be mapped by several: the last one to go unmaps it.
    """

    def __init__(self, path: Path) -> None:
        """Map it. OSError where it is incomplete or does not load."""
        self._handle = _mapped(path)
        # At exit others' threads may still run what is in it.
        weakref.finalize(self, dlclose, self._handle).atexit = False

    def address(self, symbol: str) -> KernelAddress:
        """Return the address of a function. OSError where there is none of that name."""
        # Not by ctypes.CDLL, which makes a callable of each: that took as long as the rest.
        found = KernelAddress(dlsym(self._handle, symbol))
        found.library = self
        return found


def _mapped(path: Path) -> int:
    """Return the loader's handle of a library."""
    check_complete(path)
    first: OSError | None = None
    with contextlib.closing(places(path)) as tried:
        for place in tried:
            try:
                handle = dlopen(str(place), os.RTLD_NOW | os.RTLD_LOCAL)
            except OSError as error:
                first = first or error
                continue
            if first is not None:
                warn_of_copy(first)
            return handle
    assert first is not None
    raise first


def places(path: Path) -> Generator[Path, None, None]:
    """Yield the path of a library, and then of copies that last as long as the iterator.

    The file system of the first may forbid to run what is there. Each path is new: the loader
    takes a library whose path it knows for the one that it has.
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
_WAYS = "fd", "task"
"""Folders of a process in /proc, through which each path of a file of its own can be told."""


@contextlib.contextmanager
def in_memory(data: bytes) -> Generator[Path, None, None]:
    """Yield the path of a file in memory, for the length of the block; no other has had that path.

    OSError where the system has no such files.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    with open(os.memfd_create("gyrator"), "wb", buffering=0) as file:
        file.write(data)
        number = next(_IN_MEMORY)
        way = "".join(f"{_WAYS[number >> k & 1]}/../" for k in range(number.bit_length()))
        yield Path(f"/proc/self/{way}fd/{file.fileno()}")


def warn_of_copy(reason: Exception) -> None:
    """Warn, once, that libraries cannot be mapped where they lie."""
    _warn_once(str(reason).rpartition(":")[2].strip())


@functools.cache
def _warn_once(why: str) -> None:
    warn(
        "GY-CACHE-010",
        f"what is in the cache folder cannot be run there ({why}); copies of it are",
        "set GYRATOR_CACHE_DIR to a folder on a file system that is not mounted noexec",
    )


def check_complete(path: Path) -> None:
    """Raise OSError for a library of which a part is missing, which would crash whoever maps it."""
    if sys.platform != "linux":
        return
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        needed = _needed_bytes(file.fileno())
    if not 0 < needed <= size:
        raise OSError(f"{path.name}: not a whole library ({size} bytes of {needed or 'what?'})")


def _needed_bytes(file: int) -> int:
    """Return how long a library must be by what its headers say; 0 for none."""
    head = os.pread(file, 64, 0)
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return 0
    if head[4] != 2:  # the loader knows the others
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
