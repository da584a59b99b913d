"""Whether a compiled family gives what eager mode gives, and how much of it PyTorch runs."""

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
"""Eager's error above which the float64 model is taken to have chosen otherwise: it draws other
numbers, and routes what is nearly a tie elsewhere."""
_NEAR = 64 * torch.finfo(torch.float32).eps
"""Distance from eager, relative, where the float64 model says nothing."""


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
    """What was found about a form of a family."""

    kind: Kind = ""
    detail: str = ""
    explained: str = ""
    """`torch`: PyTorch's own front end (`aot_eager`) shows the same."""
    error: float = 0.0
    bound: float = 0.0
    graphs: int = 0
    """Dynamo's."""
    breaks: int = 0
    """Dynamo's, too."""
    compiled: int = 0
    """Programs that we were asked for; forward and backward are two."""
    eager: int = 0
    """Those of them that run eagerly."""
    refused: tuple[str, ...] = ()
    """Calls of PyTorch's for what was refused, and why."""
    kernels: int = 0
    seconds: float = 0.0
    """What the first call took."""
    plain_seconds: float = 0.0
    """The same with `aot_eager`."""
    stages: tuple[tuple[str, float], ...] = ()
    """Seconds of each of our stages."""

    @property
    def failed(self) -> bool:
        """Whether something needs mending."""
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
        """Compile a family and compare what it gives."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._judge(model, form)

    def _judge(self, model: Model, form: Form) -> Outcome:
        torch.manual_seed(self.seed)
        base = model.build().train(form.mode == "training")
        eager, exact, plain = deepcopy(base), deepcopy(base), deepcopy(base)
        inputs = _inputs(model, form, self.seed)
        theirs = [run_once(eager, eager, _fresh(x), form.mode, k) for k, x in inputs]
        true = _exactly(exact, inputs, form.mode)
        plainly, plain_seconds, raised = _compiled(plain, "aot_eager", inputs, form)
        plain_found = _compared(plainly, theirs, true, raised)
        self._records.clear()
        counters.clear()
        ours, seconds, raised = _compiled(base, self._session.backend, inputs, form)
        found = _compared(ours, theirs, true, raised)
        if found.kind and plain_found.kind == found.kind:
            found = evolve(found, explained="torch")
        found = evolve(found, seconds=seconds, plain_seconds=plain_seconds)
        return _counted(found, self._records)


def _inputs(model: Model, form: Form, seed: int) -> list[tuple[int, tuple[Tensor, ...]]]:
    """Return what each call is given: the same sizes twice, or one after the other."""
    sizes = model.sizes if form.shapes == "dynamic" else (model.size,) * 2
    generators = [torch.Generator().manual_seed(1000 * seed + 7 * k + 1) for k in range(len(sizes))]
    return [(k, model.inputs(g, n)) for k, (g, n) in enumerate(zip(generators, sizes, strict=True))]


def _fresh(given: Sequence[Tensor]) -> list[Tensor]:
    """Return copies, which may be written to and differentiated."""
    return [t.detach().clone() for t in given]


def _exactly(
    module: nn.Module, inputs: Sequence[tuple[int, tuple[Tensor, ...]]], mode: Mode
) -> list[Values] | None:
    """Return what the float64 model gives, or None where it has no such form."""
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
    """Return what each call of the compiled module gives, the seconds of the first, and what was
    raised."""
    torch._dynamo.reset()
    call = torch.compile(module, backend=backend, dynamic=form.shapes == "dynamic")
    found: list[Values] = []
    seconds = 0.0
    for turn, given in inputs:
        start = time.perf_counter()
        try:
            found.append(run_once(module, call, _fresh(given), form.mode, turn))
        except Exception as error:
            return found, seconds, f"{type(error).__name__}: {first_line(error)}"
        seconds = seconds or time.perf_counter() - start
    return found, seconds, ""


def _compared(
    ours: Sequence[Values], theirs: Sequence[Values], true: Sequence[Values] | None, raised: str
) -> Outcome:
    if raised:
        return Outcome(kind="exception", detail=raised)
    error = eager_error = 0.0
    for k, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        try:
            found = errors_of(mine, other, other if true is None else true[k])
        except AssertionError as differs:
            return Outcome(kind="value", detail=str(differs))
        error, eager_error = max(error, found[0]), max(eager_error, found[1])
    if true is not None and not eager_error < _APART:
        return _compared(ours, theirs, None, "")
    bound = _NEAR if true is None else allowed_block_error(eager_error, torch.float32)
    if error <= bound:
        return Outcome(error=error, bound=bound)
    return Outcome(
        kind="value", detail=f"error {error:.3g} is above {bound:.3g}", error=error, bound=bound
    )


def _counted(found: Outcome, records: Sequence[GraphRecord]) -> Outcome:
    """Add how much was compiled, and how much was not."""
    lost = [r.fallback.splitlines()[0] for r in records if r.fallback]
    if lost and not found.kind:
        found = evolve(found, kind="eager", detail=lost[0])
    stages: dict[str, float] = {}
    for record in records:
        for stage, seconds in record.seconds:
            stages[stage] = stages.get(stage, 0.0) + seconds
    refused = [f"{e.target}: {e.reason}" for r in records for e in r.externs]
    return evolve(
        found,
        graphs=counters["stats"]["unique_graphs"],
        breaks=sum(counters["graph_break"].values()),
        compiled=len(records),
        eager=len(lost),
        refused=tuple(r for r in refused if ": GY-" in r),
        kernels=sum(len(r.kernels) for r in records),
        stages=tuple(stages.items()),
    )
