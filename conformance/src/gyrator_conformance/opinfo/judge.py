"""Compare compiled ops with eager ones, sample by sample.

The calls of several samples are compiled as one graph, because each compile runs the C++ compiler;
if something differs or raises, they are compiled separately.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor
from torch.utils import _pytree as pytree

from gyrator.config import Config, read_config
from gyrator.reports.accuracy import describe_difference, is_as_near, is_close
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_conformance.fuzz.judge import (
    Verdict,
    first_line,
    form,
    gradients_of,
    is_same,
    nudged_up,
    shared_otherwise,
    widened,
)
from gyrator_conformance.opinfo.samples import (
    UNORDERED,
    UNWRITTEN,
    Call,
    Case,
    calls,
    copied,
    joined,
)

_TOGETHER = 20
"""The number of samples in a graph."""


@frozen
class Outcome:
    """The outcome of a case."""

    samples: int = 0
    refused: int = 0
    """The number of samples that eager mode refuses too."""
    graphs: int = 0
    findings: tuple[tuple[str, str, str], ...] = ()
    """(kind, difference, explanation)."""


Run = Callable[..., list[Any]]


@define(eq=False)
class OpJudge:
    """Compiles ops in a session of its own."""

    config: Config = field(factory=read_config)
    _records: list[GraphRecord] = field(factory=list)
    _session: Session = field(init=False)

    def __attrs_post_init__(self) -> None:
        options = {"cache": False, "progress": False, "fallback_random": True}
        self._session = Session(options=options, config=self.config, observer=self._records.append)

    def judge(self, case: Case) -> Outcome:
        """Compile the calls of a case and compare the results."""
        self._records.clear()
        with warnings.catch_warnings(), torch._dynamo.config.patch(
            capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
        ), _filling(case.op in UNWRITTEN):  # fmt: skip
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            samples = calls(case)
            supported = [c for c in samples if _takes(c, case)]
            verdicts: list[Verdict] = []
            for start in range(0, len(supported), _TOGETHER):
                verdicts += self._apart(case, supported[start : start + _TOGETHER])
        findings = tuple((v.kind, v.detail, v.explained) for v in verdicts)
        return Outcome(len(supported), len(samples) - len(supported), len(self._records), findings)

    def _apart(self, case: Case, samples: Sequence[Call]) -> list[Verdict]:
        verdict = self._together(case, samples)
        if not verdict.kind:
            return []
        if len(samples) > 1:
            middle = len(samples) // 2
            return self._apart(case, samples[:middle]) + self._apart(case, samples[middle:])
        return [
            evolve(verdict, explained=verdict.explained or self._explained(case, samples, verdict))
        ]

    def _explained(self, case: Case, samples: Sequence[Call], verdict: Verdict) -> str:
        """Return what explains a difference: PyTorch's own front end if it shows the same one."""
        run, tensors = _joined(samples, case)
        want = _outcome(run, tensors, case)
        if verdict.kind != "eager":
            front = _attempt(_compiled(run, case, "aot_eager"), tensors, case)
            ours = _attempt(_compiled(run, case, self._session.backend), tensors, case)
            if is_same(ours, front, _results(want, case, tensors), len(tensors)):
                return "torch"
        nudged = _outcome(run, [_leaf(nudged_up(copied(t)), t) for t in tensors], case)
        pairs = zip(want, nudged, strict=False)
        return "unstable" if any(_differ(a, b) for a, b in pairs) else ""

    def _together(self, case: Case, samples: Sequence[Call]) -> Verdict:
        run, tensors = _joined(samples, case)
        want = _outcome(run, tensors, case)
        begun = len(self._records)
        got = _attempt(_compiled(run, case, self._session.backend), tensors, case)
        if isinstance(got, Exception):
            return Verdict("exception", f"{type(got).__name__}: {first_line(got)}")
        lost = next((r.fallback for r in self._records[begun:] if r.fallback), "")
        if lost:
            return Verdict("eager", lost.splitlines()[0])
        exact: list[Any] | None = None
        written = _results(want, case, tensors)
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            if verdict := form(a, b, result=k < written):
                return verdict
            if isinstance(b, Tensor) and not is_close(a, b):
                if exact is None:
                    exact = _exactly(run, tensors, case, len(want))
                if not is_as_near(a, b, exact[k]):
                    alone = case.op in UNORDERED and len(samples) == 1
                    why = "overflow" if overflows(a, b, exact[k]) else ""
                    if alone and in_other_order(tensors[0], a, b):
                        why = "ties"
                    return Verdict("value", f"[{k}] {describe_difference(a, b)}", why)
        last = len(want) - len(tensors)
        return shared_otherwise([*got[:written], *got[last:]], [*want[:written], *want[last:]])


@contextmanager
def _filling(on: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(on or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _takes(call: Call, case: Case) -> bool:
    """Return whether eager mode accepts a call and returns dense tensors."""
    run, tensors = _joined((call,), case)
    try:
        results = _outcome(run, tensors, case)
    except Exception:
        return False
    return all(r.layout is torch.strided for r in results if isinstance(r, Tensor))


def _joined(samples: Sequence[Call], case: Case) -> tuple[Run, list[Tensor]]:
    """Return one function that makes all calls, and its input tensors."""
    return joined(samples, case.dynamic), [t for call in samples for t in call.tensors]


def _outcome(run: Run, tensors: Sequence[Tensor], case: Case) -> list[Any]:
    """Return results, then the inputs' gradients, and the inputs afterwards."""
    leaves = [copied(t) for t in tensors]
    torch.manual_seed(7)
    results = pytree.tree_leaves(run(*leaves))
    slopes = gradients_of(results, leaves, second=False) if case.gradients else []
    return [*results, *slopes, *(t.detach() for t in leaves)]


def _results(values: Sequence[Any], case: Case, tensors: Sequence[Tensor]) -> int:
    """Return how many of the values of a run are results."""
    return len(values) - len(tensors) * (1 + case.gradients)


def _compiled(run: Run, case: Case, backend: Any) -> Run:
    torch._dynamo.reset()
    compiled: Run = torch.compile(run, backend=backend, dynamic=case.dynamic)
    return compiled


def _attempt(run: Run, tensors: Sequence[Tensor], case: Case) -> list[Any] | Exception:
    """Return what a run gives, or the exception that it raises."""
    try:
        return _outcome(run, tensors, case)
    except Exception as error:
        return error


def _exactly(run: Run, tensors: Sequence[Tensor], case: Case, count: int) -> list[Any]:
    try:
        outcome = _outcome(run, [widened(t) for t in tensors], case)
    except Exception:
        outcome = []
    return outcome if len(outcome) == count else [None] * count


def overflows(a: Tensor, b: Tensor, exact: Any) -> bool:
    """Return whether eager's value overflows where ours and float64's are finite, and ours is
    correct everywhere."""
    if not isinstance(exact, Tensor) or exact.shape != b.shape or not b.is_floating_point():
        return False
    lost = a.isfinite() & ~b.isfinite() & exact.isfinite()
    mended = torch.where(lost, exact.to(b.dtype), b)
    return bool(lost.any()) and (is_close(a, mended) or is_as_near(a, mended, exact))


def in_other_order(x: Tensor, a: Tensor, b: Tensor) -> bool:
    """Return whether indices along an axis select equal elements, or gradients belong to equal
    elements."""
    if a.dtype is torch.int64:
        pairs = ((x.take_along_dim(a, d), x.take_along_dim(b, d)) for d in range(x.dim()))
    else:
        pairs = ((_by_element(x, a, d), _by_element(x, b, d)) for d in range(x.dim()))
    return any(is_close(actual, other) for actual, other in pairs)


def _by_element(x: Tensor, slopes: Tensor, d: int) -> Tensor:
    """Return gradients in the order of the elements, ties ordered by gradient."""
    slopes, indices = slopes.sort(d)
    order = x.detach().take_along_dim(indices, d).argsort(dim=d, stable=True)
    return slopes.take_along_dim(order, d)


def _leaf(value: Tensor, like: Tensor) -> Tensor:
    return value.detach().requires_grad_(like.requires_grad)


def _differ(a: Any, b: Any) -> bool:
    return isinstance(b, Tensor) and (form(a, b, result=False) is not None or not is_close(a, b))
