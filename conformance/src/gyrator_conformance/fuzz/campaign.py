"""Check many programs in worker processes, and shrink those that fail."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from attrs import define, evolve, field, frozen

from gyrator_conformance.fuzz.generate import smaller
from gyrator_conformance.fuzz.judge import Verdict
from gyrator_conformance.fuzz.program import Program
from gyrator_conformance.process import LineProcess, ProcessEndedError, run_side_by_side

_LIFE = 400
"""The number of programs after which a worker is replaced, which bounds memory leaks of
libraries."""
_STEPS = 250
"""The number of simpler programs tried while shrinking."""
_SPARE = 20.0
"""The seconds after the start of the last program during which failures are still shrunk."""


@frozen
class Finding:
    """A program of a campaign, and its verdict."""

    seed: int
    program: Program
    verdict: Verdict


@define(eq=False)
class Jury:
    """A worker process that checks programs; it is restarted if a program crashes it."""

    target: str
    limit: float = 60.0
    """The time limit of one program in seconds."""
    _process: LineProcess = field(init=False)
    _judged: int = 0

    def __attrs_post_init__(self) -> None:
        command = (sys.executable, "-m", "gyrator_conformance.fuzz.worker", self.target)
        # One thread each: workers run side by side.
        quiet = {"OMP_NUM_THREADS": "1", "TORCH_LOGS": "-all"}
        self._process = LineProcess(command, self.limit, quiet)

    def draw(self, seed: int, wrappers: tuple[str, ...]) -> Program | None:
        """Return the program of a seed; None if eager mode crashes the process while generating
        it."""
        try:
            answer = self._ask("draw", {"seed": seed, "wrappers": wrappers})
        except ProcessEndedError:
            return None
        return Program.from_json(answer.decode())

    def judge(self, program: Program) -> Verdict:
        """Return the verdict on a program, also if it crashes the process or hangs."""
        self._judged += 1
        if self._judged % _LIFE == 0:
            self.close()
        try:
            return Verdict(**json.loads(self._ask("judge", program.as_json())))
        except ProcessEndedError as error:
            verdict = Verdict("time" if error.slow else "crash", str(error))
        try:
            self._ask("run", program.as_json())
        except ProcessEndedError:
            return evolve(verdict, explained="torch")
        return verdict

    def _ask(self, what: str, argument: object) -> bytes:
        return self._process.ask(json.dumps([what, argument]).encode())

    def shrink(self, finding: Finding, end: float = math.inf) -> Finding:
        """Return the simplest program found, until a time of `time.monotonic`, that fails in the
        same way."""
        best, steps, place = finding, 0, 0
        changed = True
        while changed:
            changed = place > 0  # what failed before is tried again with what is left, once
            for program in islice(smaller(best.program), place, None):
                steps += 1
                if steps > _STEPS or time.monotonic() >= end:
                    return best
                verdict = self.judge(program)
                if (verdict.kind, verdict.explained) == (best.verdict.kind, ""):
                    best, changed = Finding(best.seed, program, verdict), True
                    break
                place += 1
            else:
                place = 0
        return best

    def kill(self) -> None:
        """End the process from another thread."""
        self._process.kill()

    def close(self) -> None:
        """End the process."""
        self._process.close()


def run_campaign(
    seeds: Sequence[int],
    wrappers: tuple[str, ...],
    juries: Sequence[Jury],
    report: Callable[[Finding], object],
    seconds: float = math.inf,
    shrinking: bool = True,
) -> None:
    """Check the programs of `seeds` in parallel.

    `report` is called with each finding, one at a time; unexplained ones are shrunk first if
    `shrinking`. After `seconds` no further program is started.
    """
    end = time.monotonic() + seconds

    def work(jury: Jury, seed: int) -> Iterator[Finding]:
        program = jury.draw(seed, wrappers)
        if program is None:
            finding = Finding(seed, Program((), (), ()), Verdict("crash", "", "torch"))
        else:
            finding = Finding(seed, program, jury.judge(program))
        if shrinking and finding.verdict.kind and not finding.verdict.explained:
            finding = jury.shrink(finding, end + _SPARE)
        yield finding

    run_side_by_side(juries, seeds, work, report, seconds)
