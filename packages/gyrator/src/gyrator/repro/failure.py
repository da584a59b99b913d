"""Failures of a graph: an error, a wrong result, a slow run, or a crash of the process."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal

from attrs import evolve
from torch import Tensor

from gyrator.engine.engine import Engine
from gyrator.graphs.compiled import Boxed
from gyrator.options import make_options
from gyrator.reports.records import GraphRecord
from gyrator.repro.example import Example, difference
from gyrator.session import Session
from gyrator.targets import TargetDefinition
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.passes import NO_EDITS, PassEdits
from gyrator_ir.target import Target
from gyrator_ir.types import HOST
from gyrator_runtime.profile import compare
from gyrator_runtime.warn import GyratorWarning

Kind = Literal["", "error", "wrong", "slow", "death", "hang", "not run"]
"""`death`: the process crashed. `hang`: it exceeded the time limit. `not run`: PyTorch rejects the
graph."""

_SLOW = 1.3
"""The ratio to eager's time that counts as slow."""
_SAMPLES = 15


@frozen
class Failure:
    """The failure of a graph; an empty kind means none."""

    kind: Kind = ""
    code: str = ""
    """The code of an error, or its type."""
    detail: str = ""

    def alike(self, other: "Failure") -> bool:
        """Return whether two graphs fail in the same way."""
        return (self.kind, self.code) == (other.kind, other.code)

    def __str__(self) -> str:
        if not self.kind:
            return "matches eager mode"
        return ": ".join(filter(None, (self.kind, self.code, self.detail)))


def find_failure(
    text: str,
    options: Mapping[str, Any],
    timed: bool = False,
    seed: int = 0,
    passes: PassEdits = NO_EDITS,
) -> Failure:
    """Compile the text of an ATen graph, run it, and compare it with eager mode.

    A graph that falls back to PyTorch counts as an error. A graph with symbolic sizes also runs
    with other sizes. `timed` also checks for slowness.
    """
    try:
        examples = [(e, e.eager()) for e in Example.of_sizes(text, seed)]
    except Exception as error:
        return Failure("not run", type(error).__name__, _first_line(error))
    example = examples[0][0]
    records: list[GraphRecord] = []
    chosen = make_options(options={"cache": False, "progress": False, **options})
    with Session(options=chosen, passes=passes, observer=records.append) as session:
        try:
            context = evolve(session.engine(session.options).context, keeps_repros=False)
            with warnings.catch_warnings(category=GyratorWarning, action="ignore"):
                call = Engine(context).compile(deepcopy(example.gm), "inference").call
            lost = next((r.fallback for r in records if r.fallback), "")
            if lost:
                return Failure("error", lost.partition(":")[0], lost.partition("\n")[0])
            for trial, expected in examples:
                arguments = trial.arguments()
                mismatch = difference([*call(list(arguments)), *arguments], expected, trial)
                if mismatch:
                    return Failure("wrong", "", mismatch)
        except Exception as error:
            return failed(error)
        if not timed:
            return Failure()
        return _slowness(example, call, context.targets)


def failed(error: Exception) -> Failure:
    """Return the failure for an exception."""
    if isinstance(error, GyratorError):
        return Failure("error", error.diagnostic.code, error.diagnostic.message)
    return Failure("error", type(error).__name__, _first_line(error))


def _slowness(
    example: Example, call: Boxed, targets: Mapping[str, tuple[TargetDefinition, Target]]
) -> Failure:
    devices = [v.device.type for v in example.inputs if isinstance(v, Tensor)]
    definition, target = targets[next((d for d in devices if d != HOST), HOST)]
    device = definition.device(target)
    runs = {
        "ours": lambda: call(example.arguments()),
        "eager": lambda: example.gm(*example.arguments()),
    }
    times = compare(runs, device, samples=_SAMPLES, warmup=3)
    ratio = times["ours"].minimum / times["eager"].minimum
    return Failure("slow", "", f"{ratio:.2f} of eager mode's time") if ratio > _SLOW else Failure()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
