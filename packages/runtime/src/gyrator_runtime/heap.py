"""Configuration of the C library's allocator."""

import ctypes
import functools
import sys

_LARGEST = (32 << 20) - (64 << 10)
"""glibc adapts its thresholds to blocks of up to 32 MiB, including its own header."""


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc retain up to 64 MiB of freed memory for later tensors.

    By default glibc returns freed memory above some hundred KiB to the kernel, and every call of a
    model then faults and clears its pages again: a sixth of the time of a small vision model. glibc
    raises its thresholds to the size of a freed mapped block, which this function triggers without
    touching any page of the block. `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` take
    precedence. Other allocators are not affected. Only the first call has an effect.
    """
    if not sys.platform.startswith("linux"):
        return
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return
    process.malloc.restype, process.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    process.free.restype, process.free.argtypes = None, (ctypes.c_void_p,)
    process.free(process.malloc(_LARGEST))
