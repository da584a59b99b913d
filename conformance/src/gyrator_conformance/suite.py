"""Running many cells in worker processes, and starting one again when a cell ends it."""

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import MappingProxyType
from typing import IO, Any

from attrs import asdict, define, field

from gyrator_conformance.cells import Cell, excuse_of
from gyrator_conformance.models import Model
from gyrator_conformance.profiles import Chosen
from gyrator_conformance.running import Result
from gyrator_conformance.worker import from_json

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@define(eq=False)
class Worker:
    """One worker process, started when it is first needed."""

    limit: float
    """Seconds that a cell may take."""
    seed: int = 0
    environment: Mapping[str, str] = NO_VARIABLES
    command: tuple[str, ...] = (sys.executable, "-m", "gyrator_conformance.worker")
    """What is started, with the seed as its argument; see `gyrator_conformance.worker`."""
    _process: subprocess.Popen[bytes] | None = None
    _log: IO[bytes] = field(factory=tempfile.TemporaryFile)

    def run(self, cell: Cell) -> Result:
        """Run a cell; a failure where the process ends or takes too long."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        start = time.perf_counter()
        try:
            process.stdin.write(json.dumps(asdict(cell)).encode() + b"\n")
            process.stdin.flush()
            line = self._answer(process.stdout)
        except BrokenPipeError:
            line = b""
        if line:
            return from_json(json.loads(line))
        seconds = time.perf_counter() - start
        slow = process.poll() is None and seconds >= self.limit
        self.close()
        why = f"took more than {self.limit:.0f} s" if slow else f"crashed: {self._end(process)}"
        return Result(cell=cell, status="fail", seconds=seconds, message=why)

    def kill(self) -> None:
        """End the process from another thread: `run` then returns."""
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
                [*self.command, str(self.seed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **self.environment},
                bufsize=0,
            )
        return self._process

    def _answer(self, pipe: IO[bytes]) -> bytes:
        """Return the next line, or nothing where the process ended or the limit passed."""
        end = time.monotonic() + self.limit
        found = b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while not found.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    return b""
                part = os.read(pipe.fileno(), 1 << 16)
                if not part:
                    return b""
                found += part
        return found

    def _end(self, process: subprocess.Popen[bytes]) -> str:
        status = process.returncode or 0
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"{name}; {lines[-1]}" if lines else name


def run_cells(
    cells: Iterable[Cell],
    models: Mapping[str, Model],
    targets: Mapping[str, Chosen],
    workers: Sequence[Worker],
    shown: Callable[[Result], Any],
    seconds: float = math.inf,
) -> list[Result]:
    """Run cells, and return the results in the cells' order; `shown` sees each as it comes.

    The workers run side by side, and the cells of one model on one target in one host language
    share a worker, and so its caches. After `seconds` no other cell is started, and cells that were
    not are not among the results.
    """
    end = time.monotonic() + seconds
    cells = list(cells)
    found: dict[Cell, Result] = {}
    alone, stopped = threading.Lock(), threading.Event()
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.target, cell.wrapper, cell.model), []).append(cell)
    waiting = deque(groups.values())

    def work(worker: Worker) -> None:
        try:
            while True:
                try:
                    group = waiting.popleft()
                except IndexError:
                    return
                for cell in group:
                    if stopped.is_set() or time.monotonic() >= end:
                        return
                    result = _result(cell, models, targets, worker)
                    if stopped.is_set():
                        return
                    with alone:
                        found[cell] = result
                        shown(result)
        finally:
            worker.close()

    with ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(work, worker) for worker in workers]
        try:
            for future in running:
                future.result()
        except BaseException:
            stopped.set()
            while wait(running, timeout=0.1).not_done:  # one may just start its process
                for worker in workers:
                    worker.kill()
            raise
    return [found[cell] for cell in cells if cell in found]


def _result(
    cell: Cell, models: Mapping[str, Model], targets: Mapping[str, Chosen], worker: Worker
) -> Result:
    excuse = excuse_of(cell, models[cell.model], targets[cell.target].excuses_for(cell.wrapper))
    if excuse is None:
        return worker.run(cell)
    return Result(cell=cell, status="reason", reason=excuse.reason.value, message=excuse.note)
