"""What happens while Dynamo compiles a frame: the native runner's build begins, and the garbage
collector leaves older objects alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Protocol

from attrs import field
from torch._dynamo.callback import callback_handler

from gyrator.options import Options
from gyrator.store.programs import begin_runner
from gyrator_ir.define import define
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.cache import Cache
from gyrator_runtime.collector import only_new_objects


class Settings(Protocol):
    """What a session says of the runner that it will need."""

    @property
    def options(self) -> Options:
        """The options of its compiles."""
        ...

    @property
    def cache(self) -> Cache:
        """The cache that holds the runner."""
        ...


@define(eq=False)
class Runners:
    """Starts the builds of the runners of sessions at Dynamo's next compile.

    Beside kernels, a build would delay them, and a first call would wait for it.
    """

    _sessions: list[Callable[[], Settings | None]] = field(factory=list, init=False)

    def expect(self, session: Callable[[], Settings | None]) -> None:
        """Start the build of the runner of `session()` at Dynamo's next compile, unless that is
        None. A call of `torch._dynamo.reset` before may undo this."""
        self._sessions.append(session)
        if self.start not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self.start)

    def start(self, _compile: object) -> None:
        """Start the builds that are expected. Sessions raise their errors again when they
        compile."""
        opened: set[Settings] = set()
        while self._sessions:  # a session that opens here is expected, too
            with suppress(GyratorError):
                session = self._sessions.pop()()
                if session is not None:
                    opened.add(session)
        for session in opened:
            with suppress(GyratorError):
                if _runs_plans(session.options):
                    begin_runner(session.cache)


RUNNERS = Runners()
"""The sessions of this process."""


def _runs_plans(options: Options) -> bool:
    """Return whether most programs compiled with these options run in the runner."""
    printed = options.debug_python or options.memory_asserts
    return options.wrapper == "python" and not printed


@define(eq=False)
class Compiles:
    """Excludes the objects that exist before a compile from garbage collection until it ends: from
    tracing to guards, not only while Dynamo calls the backend.

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
