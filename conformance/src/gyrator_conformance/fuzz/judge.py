"""Compare a compiled program with eager, and explain differences.

Exceptions, sizes, element types, strides, conj and neg bits, sharing of memory, gradients and the
state of inputs are compared as they are; integers are equal; floating values are within a tolerance
of eager's or as near to the same program in float64.
"""

import ctypes
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from gyrator.config import Config, read_config
from gyrator.frontend.double_backward import DoubleBackwardError
from gyrator.reports.accuracy import describe_difference, differs, is_as_near, is_close
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_conformance.bitwise import same
from gyrator_conformance.fuzz.altered import (
    ALTERATIONS,
    RESTRIDED,
    Alteration,
    Drawn,
    Owned,
    eagerly,
)
from gyrator_conformance.fuzz.program import PROGRAM_FILE, Program
from gyrator_ir.types import HOST

Kind = Literal[
    "", "value", "dtype", "shape", "device", "stride", "bits", "alias", "gradient", "exception",
    "silent", "eager", "crash", "time",
]  # fmt: skip
"""`silent`: eager raises and the compiled program does not. `eager`: a graph ran eagerly."""

_REFUSED = ("GY-COMPILE-020", "GY-OPTION-004")
"""Why a graph is left to PyTorch: it writes to elements which share a place in memory; or it asks
for numerics that kernels of the target's language cannot have."""
_LACKS = re.compile("INTERNAL ASSERT FAILED|grad_input must be contiguous")
"""What eager says where an op, or its gradient, expects a layout that nobody promised it."""
_VIEW = "view size is not compatible with input tensor's size and stride"
"""The same, of ops that are no views themselves."""
_UNCHECKED = re.compile("Expected p_in >= 0 && p_in <= 1")
"""What eager says of values that kernels do not look at."""
_UNMATCHED = re.compile("indexing tensors could not be broadcast together")
"""What eager says, as IndexError, of shapes that are looked at when a compiled program runs."""
_UNSAID = re.compile(r"\w+::\w+ failed")
"""What a host program in C++ says where libtorch does not tell what an op said."""
_MODIFIED = "has been modified by an inplace operation"
"""What eager says of a gradient that needs a value which is no more; compiled programs keep it."""
GRADIENTS = "its gradients"
_ROUNDING = ("overflow", "unstable")
"""The reasons that do not explain other bits than eager's where these are promised."""


@frozen
class Verdict:
    """What was found: nothing, or the first difference."""

    kind: Kind = ""
    detail: str = ""
    explained: str = ""
    """`torch`: PyTorch's own front end shows the same. `unstable`: eager's result changes as much
    when its inputs, or what its functions and folds return, change in the last place, or a size,
    integer or truth value that rounding decides in eager mode is the exact one. `overflow`: the
    elements that differ are other ones in eager mode too where norms are taken in float64.
    `conversion`: they depend on integers made of floats that no integer of the type is. `ties`: on
    the order of equal elements. `layout`: on how a value inside the program lies, or on the shape
    of one without elements, which is as torch's fake kernels say. `attention`: on rows with NaN,
    for which eager's kernels of attention differ. `storage`: on memory that an op of eager's leaves
    behind its result. `wider`: eager lacks an op for an element type or a layout, fails by an
    assertion of its own, or has overwritten what a gradient needs. `untyped`: an op called by a
    host program in C++ says what it says in eager mode, as RuntimeError. `manual`: the manual says
    which error is raised instead, or that none is. `refused`: what the manual says is left to
    PyTorch, numerics that a target does not have, or gradients of gradients that the compiler says
    it cannot compute."""
    graphs: int = 0


@frozen(eq=False)
class _Outcome:
    """What one call gave."""

    results: list[Any] = field(factory=list)
    gradients: list[Tensor | None] = field(factory=list)
    state: list[Tensor] = field(factory=list)
    """The inputs after the call."""
    error: Exception | None = None
    raised_in: str = ""

    @property
    def values(self) -> list[Any]:
        """Results, gradients and inputs after the call, in this order."""
        return [*self.results, *self.gradients, *self.state]


@define(eq=False)
class Judge:
    """Runs programs on one target; its sessions live as long as it does."""

    config: Config = field(factory=read_config)
    device: str = HOST
    _records: list[GraphRecord] = field(factory=list)
    _sessions: dict[str, Session] = field(factory=dict)

    def judge(self, program: Program) -> Verdict:
        """Compile the program, call it, and compare with eager execution."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._judge(program)

    def run_eagerly(self, program: Program) -> None:
        """Run every call of a program in eager mode, whatever it raises.

        Raises:
            RuntimeError: The device cannot be used any more.
        """
        for call in range(program.calls):
            self._run(program, program.function(), call)
            self._finish()

    def _finish(self) -> None:
        """Wait for the device, whose errors belong to what was started last."""
        if self.device != HOST:
            torch.accelerator.synchronize()

    def _judge(self, program: Program) -> Verdict:
        function = program.function()
        self._records.clear()
        compiled = self._compiled(program, function, self._session(program).backend)
        verdict = self._compare(program, function, compiled)
        graphs = len(self._records)
        lost = next((r.fallback for r in self._records if r.fallback), "")
        if verdict.kind and not verdict.explained:
            verdict = evolve(verdict, explained=self._explained(program, function, verdict))
        if lost and not verdict.kind:
            refused = "refused" if lost.startswith(_REFUSED) else ""
            verdict = Verdict("eager", lost.splitlines()[0], refused)
        return evolve(verdict, graphs=graphs)

    def _session(self, program: Program) -> Session:
        options = {**program.options, "cache": False, "progress": False, "wrapper": program.wrapper}
        key = repr(sorted(options.items()))
        if key not in self._sessions:
            self._sessions[key] = Session(
                options=options, config=self.config, observer=self._records.append
            )
        return self._sessions[key]

    def _compare(
        self, program: Program, function: Callable[..., Any], compiled: Callable[..., Any]
    ) -> Verdict:
        """Return the first difference that nothing explains, or else the first difference."""
        explained = Verdict()
        for call in range(program.calls):
            expected = self._run(program, function, call)
            ours = self._run(program, compiled, call)
            verdict = self._between(program, ours, expected, call)
            if verdict.kind:
                verdict = evolve(verdict, detail=f"call {call}: {verdict.detail}")
                if not verdict.explained:
                    return verdict
                explained = explained if explained.kind else verdict
        return explained

    def _between(self, program: Program, ours: _Outcome, expected: _Outcome, call: int) -> Verdict:
        """Return the first difference of one call, exceptions included."""
        if expected.error is not None and ours.error is None:
            where = f"{type(expected.error).__name__}: {first_line(expected.error)}"
            why = "manual" if _UNCHECKED.search(where) else _wider(program, expected)
            return Verdict("silent", f"eager raises {where}", why)
        if ours.error is None:
            return self._difference(program, ours, expected, call)
        if expected.error is not None and is_alike(ours.error, expected.error):
            return Verdict()
        detail = f"{_shown(ours)}, eager {_shown(expected)}"
        refused = isinstance(ours.error, DoubleBackwardError)
        why = "refused" if refused else _other_type(program, ours, expected)
        return Verdict("exception", detail, why)

    def _run(
        self, program: Program, function: Callable[..., Any], call: int, exact: bool = False,
        nudged: bool = False, mode: AbstractContextManager[Any] | None = None,
    ) -> _Outcome:  # fmt: skip
        """Run a program, in a mode if one is given, which does not change what goes in."""
        tensors, scalars = program.arguments(call, HOST if exact else self.device)
        if exact:
            tensors = [widened(t) for t in tensors]
        if nudged:
            tensors = [nudged_up(t) for t in tensors]
        # Leaves that require gradients must not be written in place.
        arguments = [t.clone() if t.requires_grad else t for t in tensors]
        state = [t.detach() for t in arguments]
        torch.manual_seed(7)
        with nullcontext() if mode is None else eagerly(mode):
            try:
                results = list(function(*arguments, *scalars))
                self._finish()
            except Exception as error:
                return _Outcome(error=error, raised_in="the program")
            gradients: list[Tensor | None] = []
            if program.gradients != "none":
                try:
                    gradients = gradients_of(results, tensors, program.gradients == "second")
                    self._finish()
                except Exception as error:
                    return _Outcome(error=error, raised_in=GRADIENTS)
        return _Outcome(results, gradients, state)

    def _exactly(self, program: Program, call: int) -> _Outcome:
        """Run a program in double precision on the host, with the random numbers of eager mode.

        What names a narrow type by another way than its name is left as it is, and so is a program
        that cannot be run in wide types throughout.
        """
        drawn = Drawn()
        self._run(program, program.function(), call, mode=drawn)
        narrow = torch.get_default_dtype()
        for wide in (True, False):
            torch.set_default_dtype(torch.float64)
            try:
                with torch.device(HOST):
                    outcome = self._run(
                        program, program.function(wide), call, exact=True, mode=Drawn(drawn.kept)
                    )
            finally:
                torch.set_default_dtype(narrow)
            if outcome.error is None:
                break
        return outcome

    def _difference(
        self, program: Program, ours: _Outcome, expected: _Outcome, call: int
    ) -> Verdict:
        verdicts = [v for v, _ in self._differences(program, ours, expected, call)]
        if verdicts:
            return next((v for v in verdicts if not v.explained), verdicts[0])
        return shared_otherwise([*ours.results, *ours.state], [*expected.results, *expected.state])

    def _differences(
        self, program: Program, ours: _Outcome, expected: _Outcome, call: int
    ) -> Iterator[tuple[Verdict, int]]:
        """Yield how results, gradients and inputs differ, each with its place in `values`."""
        names = [*program.results, *(f"gradient of {i.name}" for i in program.inputs)]
        names = names[: len(program.results) + len(expected.gradients)]
        names += [f"{i.name} afterwards" for i in program.inputs]
        exact: list[Any] | None = None
        first_state = len(names) - len(program.inputs)
        pairs = zip(names, ours.values, expected.values, strict=True)
        for k, (name, a, b) in enumerate(pairs):
            if verdict := form(a, b, result=k < len(program.results)):
                if verdict.kind == "shape" and self._has_exact_size(program, call, k, a):
                    verdict = evolve(verdict, explained="unstable")
                gradient = k >= len(program.results) and k < first_state
                yield evolve(verdict, kind="gradient" if gradient else verdict.kind,
                             detail=f"{name}: {verdict.detail}"), k  # fmt: skip
            elif isinstance(b, Tensor) and _is_bitwise(program):
                if not same(a, b):
                    yield Verdict("value", f"{name}: other bits: {describe_difference(a, b)}"), k
            elif isinstance(b, Tensor) and not is_close(a, b):
                exact = self._exactly(program, call).values if exact is None else exact
                if len(exact) != len(names) or not is_as_near(a, b, exact[k]):
                    known = len(exact) == len(names) and is_exact(a, b, exact[k])
                    detail = f"{name}: {describe_difference(a, b)}"
                    yield Verdict("value", detail, "unstable" if known else ""), k

    def _has_exact_size(self, program: Program, call: int, place: int, result: Any) -> bool:
        """Whether a result has the shape that the program in float64 gives it."""
        values = self._exactly(program, call).values
        other = values[place] if place < len(values) else None
        return (
            isinstance(other, Tensor) and isinstance(result, Tensor) and result.shape == other.shape
        )

    def _explained(self, program: Program, function: Callable[..., Any], verdict: Verdict) -> str:
        """Return what explains every call that differs from eager; empty if one is not explained.

        PyTorch's own front end explains what it shows too, and no other difference; the device of
        a result whatever its random numbers.
        """
        plain = self._compiled(program, function, "aot_eager")
        fronts = [self._run(program, plain, call) for call in range(program.calls)]
        compiled = self._compiled(program, function, self._session(program).backend)
        reasons = []
        for call, front in enumerate(fronts):
            expected, ours = self._run(program, function, call), self._run(program, compiled, call)
            difference = self._between(program, ours, expected, call)
            if difference.kind and not difference.explained:
                elsewhere = difference.kind == "device" and difference == self._between(
                    program, front, expected, call
                )
                if elsewhere or _is_same(program, ours, front):
                    reasons.append("torch")
                else:
                    reasons.append(self._unbound(program, function, compiled, call, verdict, front))
        return reasons[0] if all(reasons) and reasons else ""

    def _compiled(
        self, program: Program, function: Callable[..., Any], backend: Any
    ) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(function, backend=backend, dynamic=program.dynamic)

    def _unbound(
        self,
        program: Program,
        function: Callable[..., Any],
        compiled: Callable[..., Any],
        call: int,
        verdict: Verdict,
        front: _Outcome,
    ) -> str:
        """Return what explains a call that PyTorch's own front end does not explain as a whole."""
        if verdict.kind == "exception":
            return "storage" if self._reads_beyond(program, function, compiled, call) else ""
        if verdict.kind not in ("value", "shape", "stride"):
            return ""
        altered = RESTRIDED if verdict.kind == "stride" else ALTERATIONS
        return self._unpromised(program, function, compiled, call, altered, front)

    def _reads_beyond(
        self,
        program: Program,
        function: Callable[..., Any],
        compiled: Callable[..., Any],
        call: int,
    ) -> bool:
        """Whether eager raises what a compiled program raises where results own no more memory than
        their elements take, and nothing otherwise."""
        if self._run(program, function, call).error is not None:
            return False
        ours = self._run(program, compiled, call)
        owned = self._run(program, function, call, mode=Owned())  # type: ignore[no-untyped-call]
        return (
            ours.error is not None and owned.error is not None and is_alike(ours.error, owned.error)
        )

    def _unpromised(
        self, program: Program, function: Callable[..., Any], compiled: Callable[..., Any],
        call: int, alterations: Sequence[Alteration] = ALTERATIONS, front: _Outcome | None = None,
    ) -> str:  # fmt: skip
        """Return why nothing promises what differs in a call; empty where something does.

        What is as PyTorch's own front end has it, `front`, needs no other reason.
        """
        expected, ours = self._run(program, function, call), self._run(program, compiled, call)
        if expected.error is not None or ours.error is not None:
            return ""
        differences = self._differences(program, ours, expected, call)
        left = [k for verdict, k in differences if not verdict.explained]
        if front is not None and front.error is None:
            pairs = {k: (ours.values[k], front.values[k]) for k in left}
            bitwise, results = _is_bitwise(program), len(ours.results)
            left = [k for k, (a, b) in pairs.items() if not _agree(a, b, k < results, bitwise)]
        rounds = not _is_bitwise(program)
        for reason, mode in alterations:
            if not left or (reason in _ROUNDING and not rounds):
                continue
            altered = self._run(program, function, call, mode=mode())
            left = _still_apart(ours, expected, altered, left, whole=reason == "unstable")
            if not left:
                return reason
        if alterations is RESTRIDED or not rounds or not left:
            return ""
        nudged = self._run(program, function, call, nudged=True)
        return "" if _still_apart(ours, expected, nudged, left, whole=True) else "unstable"


def _is_same(program: Program, ours: _Outcome, front: _Outcome) -> bool:
    """Whether a compiled program does what PyTorch's own front end does, right or wrong."""
    return is_same(
        ours.error or ours.values,
        front.error or front.values,
        len(ours.results),
        len(ours.state),
        _is_bitwise(program),
    )


def is_same(
    ours: Sequence[Any] | Exception,
    front: Sequence[Any] | Exception,
    results: int,
    states: int,
    bitwise: bool = False,
) -> bool:
    """Whether two runs raised alike, or gave the same: first `results` results, then gradients,
    last `states` inputs as they are afterwards."""
    if isinstance(ours, Exception) or isinstance(front, Exception):
        return (
            isinstance(ours, Exception) and isinstance(front, Exception) and is_alike(ours, front)
        )
    if len(ours) != len(front):
        return False
    pairs = enumerate(zip(ours, front, strict=True))
    if not all(_agree(a, b, k < results, bitwise) for k, (a, b) in pairs):
        return False
    last = len(ours) - states
    compiled, plain = ([*values[:results], *values[last:]] for values in (ours, front))
    return not shared_otherwise(compiled, plain).kind


def _agree(a: Any, b: Any, result: bool, bitwise: bool) -> bool:
    if form(a, b, result=result) is not None:
        return False
    if not isinstance(b, Tensor):
        return True
    return same(a, b) if bitwise else is_close(a, b)


def _is_bitwise(program: Program) -> bool:
    return bool(program.options.get("numerics") == "bitwise")


def gradients_of(
    results: Sequence[Any], tensors: Sequence[Tensor], second: bool
) -> list[Tensor | None]:
    """Return the gradients of a weighted sum of the results, or of the first gradients' squares."""
    leaves = [t for t in tensors if t.requires_grad]
    loss = _loss(results)
    if loss is None:
        return [None for _ in tensors]
    if second:
        first = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        again = _loss([g for g in first if g is not None])
        loss = loss if again is None else loss + again
    loss.backward()
    return [t.grad for t in tensors]


def _loss(results: Sequence[Any]) -> Any:
    """Return a weighted sum of what requires gradients, or None."""
    parts = []
    for r in results:
        if isinstance(r, Tensor) and r.requires_grad:
            real = torch.view_as_real(r.resolve_conj()) if r.is_complex() else r
            flat = real.double().nan_to_num(0, 0, 0).reshape(-1)
            weights = torch.arange(flat.numel(), dtype=torch.float64, device=r.device) % 5 - 2
            parts.append((flat * weights).sum())
    return sum(parts[1:], parts[0]) if parts else None


def widened(t: Tensor) -> Tensor:
    """Return a tensor of floats as one of double precision, of which gradients are wanted alike."""
    if not t.is_floating_point() and not t.is_complex():
        return t
    wide = t.detach().to(torch.complex128 if t.is_complex() else torch.float64)
    return wide.requires_grad_(t.requires_grad)


def nudged_up(t: Tensor) -> Tensor:
    """Return a tensor of floats moved by two units in the last place."""
    if not t.is_floating_point() and not t.is_complex():
        return t
    moved = t.detach() * (1 + 2 * torch.finfo(t.dtype).eps)
    return moved.requires_grad_(t.requires_grad)


def form(a: Any, b: Any, result: bool) -> Verdict | None:
    """Return how two values differ in anything but their elements; strides and pending bits count
    of a program's results alone."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        if isinstance(b, Tensor) or isinstance(a, Tensor):
            return Verdict("shape", f"{type(a).__name__}, eager {type(b).__name__}")
        return None if a == b or a != a else Verdict("value", f"{a}, eager {b}")
    if a.dtype != b.dtype:
        return Verdict("dtype", f"{a.dtype}, eager {b.dtype}")
    if a.shape != b.shape:
        return Verdict("shape", f"{tuple(a.shape)}, eager {tuple(b.shape)}")
    if a.device != b.device:
        return Verdict("device", f"{a.device}, eager {b.device}")
    if result and strides_differ(a, b):
        return Verdict("stride", f"{a.stride()}, eager {b.stride()} of {tuple(a.shape)}")
    flags, other = (a.is_conj(), a.is_neg()), (b.is_conj(), b.is_neg())
    if result and flags != other:
        return Verdict("bits", f"conj and neg bits {flags}, eager {other}")
    if a.requires_grad != b.requires_grad:
        return Verdict("gradient", f"requires_grad {a.requires_grad}, eager {b.requires_grad}")
    return None


def is_exact(a: Tensor, b: Tensor, true: Any) -> bool:
    """Whether integers or truth values are those of float64 wherever they are not eager's: what
    eager has there is decided by how it rounds."""
    if not isinstance(true, Tensor) or true.shape != b.shape or true.dtype != b.dtype:
        return False
    if b.is_floating_point() or b.is_complex():
        return False
    return not bool((differs(a, b) & differs(a, true)).any())


def strides_differ(a: Tensor, b: Tensor) -> bool:
    """Whether strides of two tensors of one shape differ along an axis of more than one element."""
    moving = [k for k in range(a.dim()) if a.shape[k] > 1] if a.numel() else []
    return any(a.stride(k) != b.stride(k) for k in moving)


def _wider(program: Program, expected: _Outcome) -> str:
    """Return `wider` where eager's error says what eager lacks, and not what is wrong."""
    error = expected.error
    if isinstance(error, NotImplementedError) or _LACKS.search(str(error)):
        return "wider"
    if expected.raised_in == GRADIENTS:
        return "wider" if _MODIFIED in str(error) else ""
    return "wider" if _VIEW in str(error) and ".view(" not in _failing(program, error) else ""


def _other_type(program: Program, ours: _Outcome, expected: _Outcome) -> str:
    """Return which promise is kept by a RuntimeError in place of another exception of eager's."""
    if type(ours.error) is not RuntimeError or expected.error is None:
        return ""
    message, other = first_line(ours.error), first_line(expected.error)
    unsaid = not _says_errors() and _UNSAID.fullmatch(message)
    if program.wrapper == "cpp" and (message == other or unsaid):
        return "untyped"
    read = ".item()" in _failing(program, expected.error)
    is_index = isinstance(expected.error, IndexError) and (read or _UNMATCHED.search(other))
    return "manual" if is_index else ""


@cache
def _says_errors() -> bool:
    """Whether libtorch tells a host program in C++ what an op that it calls says; 2.11 does not."""
    library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
    return hasattr(library, "torch_exception_get_what_without_backtrace")


def _failing(program: Program, error: Exception | None) -> str:
    """Return the statement of the program that raised an exception."""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == PROGRAM_FILE]
    return program.text.splitlines()[(lines[-1] or 1) - 1] if lines else ""


def _still_apart(
    ours: _Outcome, expected: _Outcome, altered: _Outcome, apart: Sequence[int], whole: bool
) -> list[int]:
    """Return in which values of `apart` an alteration of eager leaves what differs as it is.

    If `whole`, an element that changes stands for all elements of its tensor.
    """
    if altered.error is not None:
        return list(apart)
    return [
        k for k in apart
        if not changes_alike(ours.values[k], expected.values[k], altered.values[k], whole,
                             strides=k < len(ours.results))
    ]  # fmt: skip


def changes_alike(result: Any, other: Any, changed: Any, whole: bool, strides: bool) -> bool:
    """Whether all that differs from eager in a result is what an alteration of eager changes."""
    if not isinstance(other, Tensor) or not isinstance(result, Tensor):
        return False
    comparable = strides and result.shape == other.shape == changed.shape
    if comparable and strides_differ(result, other) and strides_differ(result, changed):
        return False
    if changed.shape != other.shape and changed.shape != result.shape:
        return False
    if form(changed, other, False) is not None:
        return True
    if form(result, other, False) is not None:
        return False
    apart, moved = differs(result, other), differs(changed, other)
    return not bool((apart & ~moved).any()) or (whole and bool(moved.any()))


def shared_otherwise(results: Sequence[Any], other: Sequence[Any]) -> Verdict:
    """Return how two sequences differ in which of their tensors share memory."""
    ours, expected = _sharing(results), _sharing(other)
    return (
        Verdict()
        if ours == expected
        else Verdict("alias", f"{ours} share memory, eager {expected}")
    )


def _sharing(values: Sequence[Any]) -> list[tuple[int, int]]:
    tensors = [t for t in values if isinstance(t, Tensor)]
    storages = [t.untyped_storage().data_ptr() if t.numel() else 0 for t in tensors]
    pairs = ((i, j) for j in range(len(storages)) for i in range(j))
    return [(i, j) for i, j in pairs if storages[i] and storages[i] == storages[j]]


def is_alike(ours: Exception, expected: Exception) -> bool:
    """Whether two exceptions tell a user the same: one type, or one a kind of the other."""
    inner = getattr(ours, "inner_exception", None)
    return (
        isinstance(ours, type(expected))
        or isinstance(expected, type(ours))
        or (isinstance(inner, type(expected)))
    )


def first_line(error: Exception) -> str:
    """Return the first line of what an exception says, shortened."""
    return (str(error).strip().splitlines() or [""])[0][:160]


def _shown(outcome: _Outcome) -> str:
    if outcome.error is None:
        return "does not raise"
    return f"{type(outcome.error).__name__} in {outcome.raised_in}: {first_line(outcome.error)}"
