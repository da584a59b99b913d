"""Running one cell: compile, run on fresh inputs, compare with float64 and with eager."""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, Literal

import torch
from attrs import define, field, frozen
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gyrator.reports.accuracy import DRAWS, allowed_block_error, block_errors, worst_error
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_conformance.cells import DTYPES, Cell, Mode, Reason
from gyrator_conformance.models import Model
from gyrator_conformance.models.collective import start_group
from gyrator_conformance.packages import ExportError, NoKernelsError, Packager
from gyrator_conformance.profiles import Chosen

Status = Literal["pass", "fail", "reason"]


@frozen(kw_only=True)
class Result:
    """The result of a cell."""

    cell: Cell
    status: Status
    seconds: float = 0.0
    error: float = 0.0
    """Relative error against float64, the worst over results and runs."""
    eager_error: float = 0.0
    """The same for eager execution."""
    bound: float = 0.0
    kernels: int = 0
    externs: int = 0
    verified: int = 0
    """The number of kernels that agree with their IR."""
    recorded: int = 0
    """The number of recorded device graphs."""
    reason: str = ""
    """The `Reason` of a cell that did not run."""
    message: str = ""
    """The error message, or the note of the reason."""


@define(eq=False)
class CellRunner:
    """Runs the cells of one target; sessions and their caches live as long as the runner."""

    chosen: Chosen
    seed: int = 0
    verify: bool = False
    """Also compare every kernel with the interpreter of its IR."""
    _sessions: dict[str, Session] = field(factory=dict)
    _records: list[GraphRecord] = field(factory=list)
    _packages: Packager = field(factory=Packager)

    def run(self, cell: Cell, model: Model) -> Result:
        """Run a cell. An exception becomes a failure with its text."""
        start, before = time.perf_counter(), self._recorded()
        try:
            error, eager_error, bound = self._error(cell, model, self.seed)
            if error > bound:
                others = (self._error(cell, model, self.seed + k)[:2] for k in range(1, DRAWS))
                draws = chain([(error, eager_error)], others)
                error, eager_error, bound = block_errors(draws, DTYPES[cell.dtype])
        except (ExportError, NoKernelsError) as raised:
            reason = Reason.EXPORT if isinstance(raised, ExportError) else Reason.LIBRARY
            summary = str(raised).partition("\n")[0]
            return Result(cell=cell, status="reason", reason=reason.value, message=summary)
        except Exception as raised:
            if lacking := self._lacking(cell, model):
                library = Reason.LIBRARY.value
                return Result(cell=cell, status="reason", reason=library, message=lacking)
            message = f"{type(raised).__name__}: {raised}"
            seconds = time.perf_counter() - start
            return Result(cell=cell, status="fail", seconds=seconds, message=message)
        counts = (len(r.kernels) for r in self._records), (len(r.externs) for r in self._records)
        kernels, externs = map(sum, counts)
        return Result(
            cell=cell,
            status="pass" if error <= bound else "fail",
            seconds=time.perf_counter() - start,
            error=error,
            eager_error=eager_error,
            bound=bound,
            kernels=kernels,
            externs=externs,
            verified=sum(k.agrees for r in self._records for k in r.kernels),
            recorded=self._recorded() - before,
            message="" if error <= bound else f"error {error:.3g} is above {bound:.3g}",
        )

    def _error(self, cell: Cell, model: Model, seed: int) -> tuple[float, float, float]:
        """Return the error of one draw of weights and inputs, eager's, and the bound."""
        torch._dynamo.reset()
        self._records.clear()
        dtype, dynamic = DTYPES[cell.dtype], cell.shapes == "dynamic"
        if model.family == "collective":
            start_group(self.chosen.group)
        torch.manual_seed(seed)
        base = model.build().to(dtype).train(cell.mode == "training")
        device = self.chosen.target.device
        eager_device = self.chosen.profile.eager_device or device
        # The compiled program keeps its model; eager and the exact one start from copies of it.
        module = deepcopy(base).to(device)
        if cell.package != "off":
            compiled: Callable[..., Any] = self._packages.packaged(
                module, model, cell, dtype, device
            )
        else:
            backend = self._session(cell, model).backend
            compiled = torch.compile(module, backend=backend, dynamic=dynamic, fullgraph=True)
        eager, exact = deepcopy(base).to(eager_device), deepcopy(base).double()
        error = eager_error = 0.0
        worst: tuple[Values, Values, Values] | None = None
        for turn, n in enumerate(_sizes(cell, model)):
            generator = torch.Generator().manual_seed(1000 * seed + 7 * turn + 1)
            arguments = cast(model.inputs(generator, n), dtype)
            true = run_once(exact, exact, cast(arguments, torch.float64), cell.mode, turn)
            ours = run_once(module, compiled, _moved(arguments, device), cell.mode, turn)
            expected = run_once(eager, eager, _moved(arguments, eager_device), cell.mode, turn)
            called = ours, expected, true
            # A call leaves alone what the call before it gave, unless eager's does not.
            for values in (worst, called) if worst else (called,):
                measured = errors_of(*values)
                error, eager_error = max(error, measured[0]), max(eager_error, measured[1])
            worst = called
        return error, eager_error, allowed_block_error(eager_error, dtype)

    def _lacking(self, cell: Cell, model: Model) -> str:
        """Return why eager PyTorch cannot run a cell on the device; empty if it can."""
        dtype = DTYPES[cell.dtype]
        device = self.chosen.profile.eager_device or self.chosen.target.device
        torch.manual_seed(self.seed)
        try:
            module = model.build().to(dtype).train(cell.mode == "training").to(device)
            arguments = cast(model.inputs(torch.Generator().manual_seed(1), model.size), dtype)
            run_once(module, module, _moved(arguments, device), cell.mode, 0)
        except NotImplementedError as error:  # of the dispatcher, where no kernel is registered
            return f"eager PyTorch lacks an op on {device}: {str(error).partition(' (')[0]}"
        except Exception:
            return ""
        return ""

    def _session(self, cell: Cell, model: Model) -> Session:
        key = f"{cell.host} {sorted(model.options.items())}"
        if key not in self._sessions:
            options = {
                "strict": True,
                "progress": False,
                "wrapper": cell.wrapper,
                "device_graphs": cell.graphs == "on",
                "verify": "kernels" if self.verify else "",
                **model.options,
            }
            self._sessions[key] = Session(
                options=options, config=self.chosen.config, observer=self._records.append
            )
        return self._sessions[key]

    def _recorded(self) -> int:
        return sum(session.recorded_graphs for session in self._sessions.values())


def _sizes(cell: Cell, model: Model) -> tuple[int, ...]:
    """Return the size of each call.

    Static programs are called twice, since state left by the first call must not affect the second.
    With graphs, the first call runs without one, the next two record one each because the results
    of the previous call are still alive, and the others replay them.
    """
    graphs = cell.graphs == "on"
    if cell.shapes == "dynamic":
        return model.sizes * (2 if graphs else 1)
    return (model.size,) * (5 if graphs else 2)


def cast(inputs: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return floating inputs as `dtype`, the others as they are."""
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)


def _moved(inputs: Sequence[Tensor], device: str) -> tuple[Tensor, ...]:
    return tuple(t.clone().to(device) for t in inputs)


@frozen(eq=False)
class Values:
    """The results of one call."""

    results: list[Tensor]
    """Floating-point results, on their devices."""
    state: list[Tensor]
    """Floating-point buffers, which the model may have modified."""
    others: list[Tensor]
    """Integer and boolean results and buffers, which must equal eager's."""
    gradients: list[Tensor]


def run_once(
    module: nn.Module, call: Callable[..., Any], inputs: Sequence[Tensor], mode: Mode, turn: int
) -> Values:
    """Call a module, or its compiled form; in training, differentiate the sum of squares."""
    training = mode == "training"
    arguments = [t.requires_grad_(training and t.is_floating_point()) for t in inputs]
    module.zero_grad(set_to_none=True)
    torch.manual_seed(turn)
    with torch.set_grad_enabled(training):
        leaves = [t for t in tree_leaves(call(*arguments)) if isinstance(t, Tensor)]
    gradients: list[Tensor] = []
    if training:
        parts = [t for t in leaves if t.is_floating_point() and t.requires_grad]
        loss: Any = sum(t.square().mean() for t in parts)
        loss.backward()
        inputs_with_grad = [*module.parameters(), *arguments]
        gradients = [t.grad for t in inputs_with_grad if t.grad is not None]
    here = [t.detach() for t in leaves]
    state = [b.detach().clone().cpu() for b in module.buffers()]
    return Values(
        [t for t in here if t.is_floating_point()],
        [t for t in state if t.is_floating_point()],
        [t for t in (*here, *state) if not t.is_floating_point()],
        [g.detach().cpu() for g in gradients],
    )


def errors_of(ours: Values, eager: Values, true: Values) -> tuple[float, float]:
    """Return the largest compiled error and the largest eager error.

    Raises:
        AssertionError: The results differ from eager's in shape, dtype or integer values.
    """
    for actual, other in zip(_tensors(ours), _tensors(eager), strict=True):
        if actual.dtype != other.dtype or actual.shape != other.shape:
            difference = (
                f"{actual.dtype}{list(actual.shape)}, eager {other.dtype}{list(other.shape)}"
            )
            raise AssertionError(f"a result is {difference}")
    for actual, other in zip(ours.others, eager.others, strict=True):
        if not torch.equal(actual.cpu(), other.cpu()):
            wrong = int((actual.cpu() != other.cpu()).sum())
            raise AssertionError(f"{wrong} integers differ from eager's")
    return _worst(ours, true), _worst(eager, true)


def _tensors(values: Values) -> list[Tensor]:
    return [*values.results, *values.state, *values.others, *values.gradients]


def _worst(values: Values, true: Values) -> float:
    """Return the largest error: of each result, of the state, and of the gradients."""
    together = (values.state, true.state), (values.gradients, true.gradients)
    errors = [worst_error(got, exact, single=0) for got, exact in together]
    results = [t.cpu() for t in values.results]
    return max(worst_error(results, true.results, len(true.results)), *errors)
