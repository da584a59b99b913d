"""Control of Python's garbage collector during compiles and loads."""

import contextlib
import gc
from collections.abc import Iterator

_YOUNG = 100_000
"""How many objects more a block may have made than deleted until the collector looks at them:
Python's default of 700 has it look 500 times during a compile, and three times at all of them."""


@contextlib.contextmanager
def only_new_objects(collect: bool = True) -> Iterator[None]:
    """Exclude objects that exist before the `with` block from garbage collection inside it, and
    collect new ones less often.

    A compile or load creates many objects, which trigger collections. A full one traverses
    everything that PyTorch has loaded, which takes a quarter of a second and frees next to nothing.
    A process that uses `gc.freeze` itself, or has turned collections off, is not affected.

    Args:
        collect: collect what dies in the block: some of it inside, the rest when it ends. Otherwise
            all of it waits for a full collection, as what was alive before the block does. Imports
            leave little, and a collection visits everything that they have made.
    """
    young, *older = gc.get_threshold()
    # The count of frozen objects takes long in a block that is inside of another.
    if not 0 < young < _YOUNG or not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.freeze()
    gc.set_threshold(_YOUNG if collect else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        if collect:
            gc.collect(0)
        gc.freeze()  # resets the collector's counts
        gc.unfreeze()
