"""Running a graph in a separate process, which may crash or hang."""

import multiprocessing
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, Self

from attrs import field

from gyrator.repro.failure import Failure, find_failure
from gyrator_ir.define import define


@define
class Worker:
    """Runs graphs one after another; a process that ended is replaced.

    Use as a context manager.
    """

    options: Mapping[str, Any]
    seconds: float = 60.0
    """Time limit of one run, in seconds."""
    timed: bool = False
    seed: int = 0
    tries: int = field(default=0, init=False)
    _process: Any = field(default=None, init=False)
    _pipe: Connection | None = field(default=None, init=False)

    def __call__(self, text: str) -> Failure:
        """Return the failure of the text of a graph."""
        self.tries += 1
        pipe = self._opened()
        try:
            pipe.send((text, dict(self.options), self.timed, self.seed))
            if not pipe.poll(self.seconds):
                self.close()
                return Failure("hang", "", f"it took longer than {self.seconds:g} s")
            failure: Failure = pipe.recv()
        except (EOFError, ConnectionError):
            status = self._ended()
            return Failure("death", status, f"the process ended with {status}")
        return failure

    def _opened(self) -> Connection:
        if self._pipe is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._pipe, remote = context.Pipe()
            self._process = context.Process(target=_serve, args=(remote,), daemon=True)
            self._process.start()
            remote.close()
        return self._pipe

    def _ended(self) -> str:
        self._process.join()
        code = self._process.exitcode
        self._process = self._pipe = None
        return signal.Signals(-code).name if code < 0 else f"status {code}"

    def close(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(pipe: Connection) -> None:
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        pipe.send(find_failure(*request))
