"""The native runner's build, started when Dynamo begins to trace: beside kernels it would delay
them, and a first call would wait for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from attrs import field
from torch._dynamo.callback import callback_handler

from gyrator.options import Options
from gyrator.store.programs import begin_runner
from gyrator_ir.define import define
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.cache import Cache


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
    """Starts the builds of the runners of sessions at Dynamo's next compile."""

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
