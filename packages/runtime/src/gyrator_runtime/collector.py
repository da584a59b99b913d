"""Control of Python's garbage collector during compiles and loads."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Exclude objects that exist before the `with` block from garbage collection inside it.

    A compile or load creates many objects, which trigger full collections. Each of these traverses
    everything that PyTorch has loaded, which takes a quarter of a second and frees next to nothing.
    Objects created in the block are collected as usual. A process that uses `gc.freeze` itself is
    not affected.
    """
    if gc.get_freeze_count() or not gc.isenabled():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.collect(1)
        gc.freeze()  # resets the collector's counts
        gc.unfreeze()
