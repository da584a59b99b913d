"""Memory that is given back stays with the process."""

import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import ctypes, sys
from gyrator_runtime.heap import keep_freed_memory

class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Counts
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
if sys.argv[1] == "kept":
    keep_freed_memory()
before = libc.mallinfo2().hblks
libc.malloc(20 << 20)
print(libc.mallinfo2().hblks - before)
"""


def _mapped(how: str) -> int:
    """Return how many mappings of its own a block of 20 MiB takes."""
    run = [sys.executable, "-c", _SCRIPT, how]
    return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator of glibc")
def test_large_blocks_come_from_a_heap_that_is_kept() -> None:
    assert _mapped("not kept") == 1
    assert _mapped("kept") == 0
