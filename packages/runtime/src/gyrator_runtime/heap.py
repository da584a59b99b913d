"""What the C library's allocator does with memory that a program gives back."""

import ctypes
import functools
import sys

_LARGEST = (32 << 20) - (64 << 10)
"""glibc learns from blocks of up to 32 MiB, with what it adds to one."""


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB that were given back, for tensors that are made next.

    By default it hands back to the kernel whatever exceeds some hundred KiB, and every call of a
    model then has its pages mapped and cleared again: a sixth of the time of a small vision model.
    glibc raises its limits to the size of a mapped block that is freed, which this provokes; no
    page of the block is touched. Who sets `MALLOC_TRIM_THRESHOLD_` or `MALLOC_MMAP_THRESHOLD_`
    keeps those. Other allocators are left as they are. Only the first call does anything.
    """
    if not sys.platform.startswith("linux"):
        return
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return
    process.malloc.restype, process.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    process.free.restype, process.free.argtypes = None, (ctypes.c_void_p,)
    process.free(process.malloc(_LARGEST))
