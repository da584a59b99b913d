"""Compare a compiled family with eager mode, and count what falls back to PyTorch."""

import time
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor, nn
from torch._dynamo.utils import counters

from gyrator.config import Config, read_config
from gyrator.reports.accuracy import allowed_block_error
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_conformance.cells import Mode, Shapes
from gyrator_conformance.fuzz.judge import first_line
from gyrator_conformance.models import Model
from gyrator_conformance.running import Values, cast, errors_of, run_once

Kind = Literal["", "value", "exception", "eager", "crash", "time"]
"""`eager`: right, but a graph ran eagerly."""

_APART = 1e-3
"""If eager's error exceeds this, the float64 model is assumed to have taken another path: it draws
other random numbers and routes near-ties differently."""
_NEAR = 64 * torch.finfo(torch.float32).eps
"""The tolerated relative distance from eager if the float64 model is no reference."""


@frozen
class Form:
    """How a family is compiled."""

    name: str
    mode: Mode = "inference"
    shapes: Shapes = "static"

    def __str__(self) -> str:
        return f"{self.name}/{self.mode}/{self.shapes}"


@frozen(kw_only=True)
class Outcome:
    """The outcome of one form of a family."""

    kind: Kind = ""
    detail: str = ""
    explained: str = ""
    """`torch`: PyTorch's own front end (`aot_eager`) fails in the same way."""
    error: float = 0.0
    bound: float = 0.0
    graphs: int = 0
    """The number of Dynamo graphs."""
    breaks: int = 0
    """The number of Dynamo graph breaks."""
    compiled: int = 0
    """The number of requested programs; forward and backward count separately."""
    eager: int = 0
    """The number of programs that run in eager mode."""
    refused: tuple[str, ...] = ()
    """The fallback calls, by reason."""
    kernels: int = 0
    seconds: float = 0.0
    """The seconds of the first call."""
    plain_seconds: float = 0.0
    """The same with `aot_eager`."""
    stages: tuple[tuple[str, float], ...] = ()
    """The seconds of each compile stage."""

    @property
    def failed(self) -> bool:
        """Whether the outcome is a failure."""
        return bool(self.kind and not self.explained)


@define(eq=False)
class FamilyJudge:
    """Compiles families in a session of its own."""

    config: Config = field(factory=read_config)
    seed: int = 0
    _records: list[GraphRecord] = field(factory=list)
    _session: Session = field(init=False)

    def __attrs_post_init__(self) -> None:
        options = {"cache": False, "progress": False, "fallback_random": True}
        self._session = Session(options=options, config=self.config, observer=self._records.append)
        for backend in ("aot_eager", self._session.backend):  # what only a first compile takes
            torch.compile(torch.sin, backend=backend)(torch.ones(2, requires_grad=True)).sum()

    def judge(self, model: Model, form: Form) -> Outcome:
        """Compile a family and compare its results."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._judge(model, form)

    def _judge(self, model: Model, form: Form) -> Outcome:
        torch.manual_seed(self.seed)
        base = _without_zeros(model.build()).train(form.mode == "training")
        eager, exact, plain = deepcopy(base), deepcopy(base), deepcopy(base)
        inputs = _inputs(model, form, self.seed)
        expected = [run_once(eager, eager, _fresh(x), form.mode, k) for k, x in inputs]
        true = _exactly(exact, inputs, form.mode)
        plainly, plain_seconds, raised = _compiled(plain, "aot_eager", inputs, form)
        plain_found = _compared(plainly, expected, true, raised)
        self._records.clear()
        counters.clear()
        ours, seconds, raised = _compiled(base, self._session.backend, inputs, form)
        outcome = _compared(ours, expected, true, raised)
        if outcome.kind and plain_found.kind == outcome.kind:
            outcome = evolve(outcome, explained="torch")
        outcome = evolve(outcome, seconds=seconds, plain_seconds=plain_seconds)
        return _counted(outcome, self._records)


def _without_zeros(module: nn.Module) -> nn.Module:
    """Draw the parameters that start at 0: a head that is 0 would hide all that precedes it."""
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return module


def _inputs(model: Model, form: Form, seed: int) -> list[tuple[int, tuple[Tensor, ...]]]:
    """Return the inputs of each call: equal sizes, or different ones for dynamic shapes."""
    sizes = model.sizes if form.shapes == "dynamic" else (model.size,) * 2
    generators = [torch.Generator().manual_seed(1000 * seed + 7 * k + 1) for k in range(len(sizes))]
    return [(k, model.inputs(g, n)) for k, (g, n) in enumerate(zip(generators, sizes, strict=True))]


def _fresh(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies that may be modified and differentiated."""
    return [t.detach().clone() for t in tensors]


def _exactly(
    module: nn.Module, inputs: Sequence[tuple[int, tuple[Tensor, ...]]], mode: Mode
) -> list[Values] | None:
    """Return the results of the float64 model, or None if the model has no such form."""
    try:
        module.double()
        return [
            run_once(module, module, cast(_fresh(x), torch.float64), mode, k) for k, x in inputs
        ]
    except RuntimeError:
        return None


def _compiled(
    module: nn.Module,
    backend: str | Callable[..., Any],
    inputs: Sequence[tuple[int, tuple[Tensor, ...]]],
    form: Form,
) -> tuple[list[Values], float, str]:
    """Return the results of each call of the compiled module, the seconds of the first call, and
    the exception."""
    torch._dynamo.reset()
    call = torch.compile(module, backend=backend, dynamic=form.shapes == "dynamic")
    runs: list[Values] = []
    seconds = 0.0
    for turn, arguments in inputs:
        start = time.perf_counter()
        try:
            runs.append(run_once(module, call, _fresh(arguments), form.mode, turn))
        except Exception as error:
            return runs, seconds, f"{type(error).__name__}: {first_line(error)}"
        seconds = seconds or time.perf_counter() - start
    return runs, seconds, ""


def _compared(
    ours: Sequence[Values], expected: Sequence[Values], true: Sequence[Values] | None, raised: str
) -> Outcome:
    if raised:
        return Outcome(kind="exception", detail=raised)
    error = eager_error = 0.0
    for k, (actual, other) in enumerate(zip(ours, expected, strict=True)):
        try:
            measured = errors_of(actual, other, other if true is None else true[k])
        except AssertionError as differs:
            return Outcome(kind="value", detail=str(differs))
        error, eager_error = max(error, measured[0]), max(eager_error, measured[1])
    if true is not None and not eager_error < _APART:
        return _compared(ours, expected, None, "")
    bound = _NEAR if true is None else allowed_block_error(eager_error, torch.float32)
    if error <= bound:
        return Outcome(error=error, bound=bound)
    return Outcome(
        kind="value", detail=f"error {error:.3g} is above {bound:.3g}", error=error, bound=bound
    )


def _counted(outcome: Outcome, records: Sequence[GraphRecord]) -> Outcome:
    """Add counts of what was compiled and what was not."""
    lost = [r.fallback.splitlines()[0] for r in records if r.fallback]
    if lost and not outcome.kind:
        outcome = evolve(outcome, kind="eager", detail=lost[0])
    stages: dict[str, float] = {}
    for record in records:
        for stage, seconds in record.seconds:
            stages[stage] = stages.get(stage, 0.0) + seconds
    refused = [f"{e.target}: {e.reason}" for r in records for e in r.externs]
    return evolve(
        outcome,
        graphs=counters["stats"]["unique_graphs"],
        breaks=sum(counters["graph_break"].values()),
        compiled=len(records),
        eager=len(lost),
        refused=tuple(r for r in refused if ": GY-" in r),
        kernels=sum(len(r.kernels) for r in records),
        stages=tuple(stages.items()),
    )
