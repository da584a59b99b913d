"""Run cells in worker processes, which are restarted if a cell crashes them."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, define, field

from gyrator_conformance.cells import Cell, excuse_of
from gyrator_conformance.models import Model
from gyrator_conformance.process import (
    NO_VARIABLES,
    LineProcess,
    ProcessEndedError,
    run_side_by_side,
)
from gyrator_conformance.profiles import Chosen
from gyrator_conformance.running import Result
from gyrator_conformance.worker import from_json


@define(eq=False)
class Worker:
    """A worker process that is started on demand."""

    limit: float
    """The time limit of a cell in seconds."""
    seed: int = 0
    environment: Mapping[str, str] = NO_VARIABLES
    command: tuple[str, ...] = (sys.executable, "-m", "gyrator_conformance.worker")
    """The command of the process, which takes the seed as its argument; see
    `gyrator_conformance.worker`."""
    _process: LineProcess = field(init=False)

    def __attrs_post_init__(self) -> None:
        command = (*self.command, str(self.seed))
        self._process = LineProcess(command, self.limit, self.environment)

    def run(self, cell: Cell) -> Result:
        """Run a cell; a crash or a timeout is a failure."""
        start = time.perf_counter()
        try:
            answer = self._process.ask(json.dumps(asdict(cell)).encode())
        except ProcessEndedError as error:
            seconds = time.perf_counter() - start
            return Result(cell=cell, status="fail", seconds=seconds, message=str(error))
        return from_json(json.loads(answer))

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process.running

    def kill(self) -> None:
        """End the process from another thread: `run` then returns."""
        self._process.kill()

    def close(self) -> None:
        """End the process."""
        self._process.close()


def run_cells(
    cells: Iterable[Cell],
    models: Mapping[str, Model],
    targets: Mapping[str, Chosen],
    workers: Sequence[Worker],
    report: Callable[[Result], Any],
    seconds: float = math.inf,
) -> list[Result]:
    """Run cells, and return the results in the cells' order; `report` sees each as it comes.

    The workers run side by side, and the cells of one model on one target in one host language
    share a worker, and so its caches. After `seconds` no other cell is started, and cells that were
    not are not among the results.
    """
    cells = list(cells)
    results: dict[Cell, Result] = {}
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.target, cell.wrapper, cell.model), []).append(cell)

    def work(worker: Worker, group: Sequence[Cell]) -> Iterator[Result]:
        for cell in group:
            yield _result(cell, models, targets, worker)

    def keep(result: Result) -> None:
        results[result.cell] = result
        report(result)

    run_side_by_side(workers, groups.values(), work, keep, seconds)
    return [results[cell] for cell in cells if cell in results]


def _result(
    cell: Cell, models: Mapping[str, Model], targets: Mapping[str, Chosen], worker: Worker
) -> Result:
    excuse = excuse_of(cell, models[cell.model], targets[cell.target].excuses_for(cell.wrapper))
    if excuse is None:
        return worker.run(cell)
    return Result(cell=cell, status="reason", reason=excuse.reason.value, message=excuse.note)
