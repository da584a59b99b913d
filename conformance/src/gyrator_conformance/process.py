"""Processes that answer each line with a line and may crash, and workers that own them."""

import math
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from types import MappingProxyType
from typing import IO, Protocol, TypeVar

from attrs import define, field

_PATIENCE = 4
Task = TypeVar("Task")
Result = TypeVar("Result")
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class ProcessEndedError(RuntimeError):
    """The process ended or timed out; another is started for the next line."""

    def __init__(self, message: str, slow: bool) -> None:
        super().__init__(message)
        self.slow = slow
        """Whether it took more than its limit."""


def line_writer() -> Callable[[str], None]:
    """Return the function that answers a line in a process of `LineProcess`. From here on, output
    of libraries is redirected to standard error, so that it does not mix with the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def write(text: str) -> None:
        answers.write(text + "\n")
        answers.flush()

    return write


@define(eq=False)
class LineProcess:
    """A process that is started on demand, and again after it has ended."""

    command: tuple[str, ...]
    limit: float
    """The limit of an answer in seconds of processor time; `_PATIENCE` times as many of wall time,
    which depends on other load."""
    environment: Mapping[str, str] = NO_VARIABLES
    _process: subprocess.Popen[bytes] | None = None
    _log: IO[bytes] = field(factory=tempfile.TemporaryFile)

    @property
    def running(self) -> bool:
        """Whether a process is running."""
        return self._process is not None

    def ask(self, line: bytes) -> bytes:
        """Return the answer to a line.

        Raises:
            ProcessEndedError: There is none.
        """
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        start = time.monotonic()
        try:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            answer = self._answer(process)
        except BrokenPipeError:
            answer = b""
        if answer:
            return answer
        slow = process.poll() is None and time.monotonic() - start >= self.limit
        if not slow:  # it no longer answers, but may not have ended yet
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.limit)
        self.close()
        why = f"took more than {self.limit:.0f} s" if slow else f"crashed: {self._end(process)}"
        raise ProcessEndedError(why, slow)

    def kill(self) -> None:
        """End the process from another thread: `ask` then raises."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._log.seek(0)
            self._log.truncate()
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **self.environment},
                bufsize=0,
            )
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return the next line, or nothing if the process ended or timed out."""
        pipe = process.stdout
        assert pipe is not None
        start, worked = time.monotonic(), seconds_of_work(process.pid)
        end, last = start + self.limit, start + _PATIENCE * self.limit
        answer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    used, now = seconds_of_work(process.pid) - worked, time.monotonic()
                    if not used < self.limit or now >= last:  # not a number: nobody tells
                        return b""
                    end = min(now + self.limit - used, last)
                    continue
                part = os.read(pipe.fileno(), 1 << 16)
                if not part:
                    return b""
                answer += part
        return answer

    def _end(self, process: subprocess.Popen[bytes]) -> str:
        status = process.returncode or 0
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"{name}; {lines[-1]}" if lines else name


def seconds_of_work(pid: int) -> float:
    """Return the processor time of a process and of its ended children; infinity if the system
    does not provide it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class ProcessOwner(Protocol):
    """An owner of a process."""

    def kill(self) -> None:
        """End the process from another thread."""

    def close(self) -> None:
        """End the process."""


Owner = TypeVar("Owner", bound=ProcessOwner)


def run_side_by_side(
    workers: Sequence[Owner],
    tasks: Iterable[Task],
    work: Callable[[Owner, Task], Iterable[Result]],
    report: Callable[[Result], object],
    seconds: float = math.inf,
) -> None:
    """Let each worker, in a thread of its own, do one task after another, and close it in the end.

    `report` sees each result as it comes, one at a time. After `seconds` no other result is begun.
    An exception in a thread, or an interrupt, ends the processes of all and is raised.
    """
    end, waiting = time.monotonic() + seconds, iter(tasks)
    alone, stopped = threading.Lock(), threading.Event()

    def over() -> bool:
        return stopped.is_set() or time.monotonic() >= end

    def run(worker: Owner) -> None:
        try:
            while not over():
                with alone:
                    task = next(waiting, None)
                if task is None:
                    return
                for result in work(worker, task):
                    with alone:
                        if not stopped.is_set():
                            report(result)
                    if over():
                        return
        finally:
            worker.close()

    with ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(run, worker) for worker in workers]
        try:
            for future in running:
                future.result()
        except BaseException:
            stopped.set()
            while wait(running, timeout=0.1).not_done:  # one may just start its process
                for worker in workers:
                    worker.kill()
            raise
