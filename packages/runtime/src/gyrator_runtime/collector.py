"""What Python's collector of cycles does while something is compiled, or loaded."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Let the collector look at nothing in the `with` block that was alive before it.

    A compile or a load makes many objects, which provoke full collections; each of them walks all
    that PyTorch has loaded, a quarter of a second, and finds next to nothing. What dies in the
    block is collected as ever. A process that has frozen objects of its own (`gc.freeze`) is left
    as it is.
    """
    if gc.get_freeze_count() or not gc.isenabled():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
