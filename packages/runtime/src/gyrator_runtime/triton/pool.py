"""Worker processes for compilation, started on demand.

They are spawned, not forked: they inherit only the module path of this process. If a worker dies,
its job is retried by another one.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from gyrator_runtime.build import BuildError, available_cores
from gyrator_runtime.process import spawning
from gyrator_runtime.triton.compile import Job

_ATTEMPTS = 3
_TAIL_LINES = 15


class WorkerPool:
    """Compiles jobs in up to `size` processes, with a time limit of `seconds` per job.

    A forked process starts its own workers.
    """

    def __init__(self, size: int = 0, seconds: float = 300.0) -> None:
        self._size = size or available_cores()
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._threads: ThreadPoolExecutor | None = None
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        self._alive: set[subprocess.Popen[str]] = set()
        self._pid = os.getpid()

    def submit(self, job: Job, folder: Path) -> "Future[None]":
        """Compile into `folder`. The future raises BuildError if that fails."""
        return self.executor().submit(self.run, job, folder)

    def executor(self) -> ThreadPoolExecutor:
        """Return the threads that wait for workers, one per worker."""
        self._after_fork()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._size, "gyrator-triton")
        return self._threads

    def warm(self, count: int) -> None:
        """Start workers, up to `count` in total, so that importing Triton overlaps with other
        work."""
        self._after_fork()
        for _ in range(min(count, self._size) - len(self._alive)):
            self._idle.put(self._start())

    def run(self, job: Job, folder: Path) -> None:
        """Compile one job synchronously. BuildError (GY-BUILD-002 or 003) if that fails."""
        for _ in range(_ATTEMPTS):
            worker = self._take()
            late = threading.Event()
            timer = threading.Timer(self._seconds, _expire, (worker, late))
            timer.daemon = True
            timer.start()
            answer = _ask(worker, job, folder)
            timer.cancel()
            if answer is None or late.is_set():
                self._alive.discard(worker)
                _end(worker)
                if late.is_set():
                    raise _timed_out(job, self._seconds)
                continue
            self._idle.put(worker)
            if answer:
                raise _failed(job, answer)
            return
        raise _killed(job)

    def close(self) -> None:
        """Wait for running jobs and end the workers. The pool remains usable."""
        self._after_fork()
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)
        while self._alive:
            _end(self._alive.pop())
        self._idle = queue.SimpleQueue()

    def _take(self) -> subprocess.Popen[str]:
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._idle.get_nowait()
                if worker.poll() is None:
                    return worker
                self._alive.discard(worker)
                _end(worker)
        return self._start()

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        with spawning():
            worker = subprocess.Popen(
                (sys.executable, "-m", "gyrator_runtime.triton.worker"),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                process_group=0,
            )
        self._alive.add(worker)
        return worker

    def _after_fork(self) -> None:
        if os.getpid() != self._pid:
            self._threads, self._alive, self._pid = None, set(), os.getpid()
            self._idle = queue.SimpleQueue()


def _ask(worker: "subprocess.Popen[str]", job: Job, folder: Path) -> str | None:
    """Return the worker's answer, or None if it died."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(json.dumps([str(folder), job.as_json()]) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
    except (OSError, ValueError):
        return None
    return str(json.loads(line)) if line.endswith("\n") else None


def _expire(worker: "subprocess.Popen[str]", late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):
        os.killpg(worker.pid, signal.SIGKILL)


def _end(worker: "subprocess.Popen[str]") -> None:
    """Kill an idle worker, which may still be importing the compiler."""
    worker.kill()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    worker.wait()


def _failed(job: Job, answer: str) -> BuildError:
    lines = tuple(answer.strip().splitlines()[-_TAIL_LINES:])
    message = f"Triton failed on kernel {job.symbol}: {lines[-1] if lines else 'no reason given'}"
    help = "run `gyrator doctor`; report the kernel as a bug"
    return BuildError.of("GY-BUILD-002", message, f"{job.backend} {job.arch}", lines, help)


def _killed(job: Job) -> BuildError:
    message = f"{_ATTEMPTS} compiler processes died on kernel {job.symbol}"
    help = "check that there is memory left; the model runs in eager mode"
    return BuildError.of("GY-BUILD-003", message, f"{job.backend} {job.arch}", help=help)


def _timed_out(job: Job, seconds: float) -> BuildError:
    message = f"Triton took more than {seconds:.0f} s on kernel {job.symbol}"
    help = "the machine may be overloaded; the model runs in eager mode"
    return BuildError.of("GY-BUILD-003", message, f"{job.backend} {job.arch}", help=help)
