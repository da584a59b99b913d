"""Python's garbage collector while Dynamo compiles a frame: from tracing to guards, not only while
it calls the backend."""

from contextlib import ExitStack

from attrs import field
from torch._dynamo.callback import callback_handler

from gyrator_ir.define import define
from gyrator_runtime.collector import only_new_objects


@define(eq=False)
class Compiles:
    """Excludes the objects that exist before a compile from garbage collection until it ends.

    Dynamo calls `start` and `end` under a lock, once each for compiles that overlap.
    """

    _block: ExitStack = field(factory=ExitStack, init=False)

    def start(self, _compile: object) -> None:
        """Exclude the objects that exist."""
        self._block.enter_context(only_new_objects())

    def end(self, _compile: object) -> None:
        """Include them again; nothing if `start` was not called."""
        self._block.close()


_COMPILES = Compiles()


def watch_compiles() -> None:
    """Have Dynamo announce compiles, until `torch._dynamo.reset` is called. If that was during a
    compile, which so has no end, the end of the next one counts for both."""
    if _COMPILES.start not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_COMPILES.start)
        callback_handler.register_end_callback(_COMPILES.end)
