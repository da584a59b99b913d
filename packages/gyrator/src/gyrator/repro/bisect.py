"""Finds the first stage, pass or kernel whose results differ from the graph's.

The compiler's stages run in order, and their outputs are interpreted: graphs by PyTorch, the levels
of IR by the interpreters of `gyrator_testing`. A pass is checked by comparing its input with its
output, a stage by comparing with the results of the graph, a kernel by comparing with its IR.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from operator import attrgetter
from typing import Any, TypeVar

from attrs import evolve, field
from torch.fx import GraphModule

from gyrator.autotune.kernels import Budget
from gyrator.engine.engine import Engine
from gyrator.engine.pipeline import Stages
from gyrator.options import make_options
from gyrator.repro.arrays import array_of, check_interpreters, tensor_of, torch_externs
from gyrator.repro.example import Example, difference, run_eagerly
from gyrator.repro.failure import failed
from gyrator.session import Session
from gyrator_ir.define import define, frozen
from gyrator_ir.levels import HOST, KERNEL, LOOP, level_of
from gyrator_ir.passes import NO_EDITS, Level, Pass, PassEdits, Tracer
from gyrator_lowering.fx_passes import FX

M = TypeVar("M")


@frozen
class Culprit:
    """The step whose results first differ, or that raised an exception."""

    stage: str
    """A level of IR, for its passes or its stage; `kernels`, for the text of a kernel; `run`, for
    the running host program; empty if there is no culprit."""
    name: str = ""
    """The name of the pass or the kernel; empty for the stage itself."""
    detail: str = ""
    before: str = ""
    """The text of the last correct program."""
    after: str = ""
    """The text of the first incorrect program."""
    checked: int = 0
    """Number of interpreted programs."""

    def __str__(self) -> str:
        if not self.stage:
            return f"all stages and passes are correct: {self.checked} programs were interpreted"
        kind = {"kernels": "kernel", "run": "host program"}.get(self.stage, "pass")
        named = f", {kind} {self.name}" if self.name else ""
        return f"stage {self.stage}{named}: {self.detail}"


class _CulpritError(Exception):
    """Carries the culprit out of the stages."""

    def __init__(self, culprit: Culprit) -> None:
        self.culprit = culprit


def bisect(
    text: str, options: Mapping[str, Any] | None = None, seed: int = 0, passes: PassEdits = NO_EDITS
) -> Culprit:
    """Compile the text of an ATen graph step by step; return the first incorrect step.

    Raises:
        VerificationError: GY-VERIFY-010, if `gyrator_testing` is not installed.
        ParseError: like `gyrator_lowering.fx_text.parse`.
    """
    check_interpreters("bisecting")
    chosen = make_options(options={"cache": False, "progress": False, **(options or {})})
    with Session(options=chosen, passes=passes) as session:
        trials = tuple((e, e.eager()) for e in Example.of_sizes(text, seed))
        checker = _Checker(trials=trials, last=text)
        try:
            _step_by_step(session.engine(session.options), checker)
        except _CulpritError as error:
            return error.culprit
    return Culprit("", checked=checker.checked)


def _step_by_step(engine: Engine, checker: "_Checker") -> None:
    gm, stages = checker.trials[0][0].gm, Stages(engine.context)
    budget = Budget(engine.context.options.autotune_seconds)
    options = stages.scheduler_options()
    graph = deepcopy(gm)
    with checker.stage(FX.name):
        passes = stages.prepare(graph, budget, checker)
    with checker.stage(LOOP.name):
        program = stages.lowered(graph, stages.lowering_options(graph, budget, passes))
        checker.check(LOOP.name, program, checker.interpreter(program, graph))
    with checker.stage(KERNEL.name):
        planned = stages.scheduled(program, options, checker)
        checker.check(KERNEL.name, planned, checker.interpreter(planned, graph))
    with checker.stage(HOST.name):
        host = stages.hosted(planned, options)
        checker.check(HOST.name, host, checker.interpreter(host, graph))
    with checker.stage("tile"):
        stages.tiled(host, checker)
    with checker.stage("kernels"):
        stages.verify(host)
    with checker.stage("run"):
        call = engine.compile(deepcopy(gm), "inference").call
        checker.check("run", host, lambda arguments: [*call(list(arguments))])


@define
class _Checker(Tracer):
    """Interprets the input and the output of each pass."""

    trials: tuple[tuple[Example, list[Any]], ...] = field(kw_only=True)
    """Arguments and PyTorch's results; for graphs with symbolic sizes, more than one size."""
    last: str = field(kw_only=True)
    """The text of the last correct program."""
    checked: int = 0

    def run(self, level: Level[M], pass_: Pass[M], program: M) -> tuple[M, bool]:
        """Run a pass; raise if it changes the program's results."""
        before: Any = deepcopy(program) if level.in_place else program
        try:
            result, changed = super().run(level, pass_, program)
        except Exception as error:
            text = level.show(before)
            raise self._culprit(level.name, pass_.name, str(failed(error)), text) from error
        if changed and (mismatch := self._changed(before, result)):
            texts = level.show(before), level.show(result)
            raise self._culprit(level.name, pass_.name, mismatch, *texts)
        return result, changed

    def _changed(self, before: Any, after: Any) -> str:
        """Describe how the results of two programs differ."""
        self.checked += 1
        if isinstance(after, GraphModule):
            return self._difference(lambda args: run_eagerly(after, args)[: -len(args) or None])
        from gyrator_testing.feeds import assert_same_meaning

        for example, _ in self.trials:
            first, second = _of_sizes(before, example), _of_sizes(after, example)
            try:
                assert_same_meaning(first, second, externs=torch_externs())
            except AssertionError as error:
                return " ".join(str(error).split())
        return ""

    def _difference(self, run: Callable[[list[Any]], list[Any]]) -> str:
        """Describe how the results of `run` differ from PyTorch's."""
        for example, expected in self.trials:
            arguments = example.arguments()
            if mismatch := difference([*run(arguments), *arguments], expected, example):
                return mismatch
        return ""

    def interpreter(self, program: Any, graph: GraphModule) -> Callable[[list[Any]], list[Any]]:
        """Return a function that interprets a program of the whole graph."""
        from gyrator_testing.levels import run_program

        self.checked += 1
        keys = {c.key for part in _parts(program) for c in getattr(part, "constants", ())}
        constants = {key: array_of(attrgetter(key)(graph)) for key in keys}

        def run(arguments: list[Any]) -> list[Any]:
            arrays = [array_of(value) for value in arguments]
            return [*map(tensor_of, run_program(program, arrays, constants, torch_externs()))]

        return run

    def check(self, stage: str, program: Any, run: Callable[[list[Any]], list[Any]]) -> None:
        """Raise if a stage's results differ from the graph's."""
        text = level_of(program).show(program)
        if mismatch := self._difference(run):
            raise self._culprit(stage, "", mismatch, self.last, text)
        self.last = text

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Attribute exceptions to the stage."""
        try:
            yield
        except _CulpritError:
            raise
        except Exception as error:
            kernel = _kernel(error) if name == "kernels" else ""
            raise self._culprit(name, kernel, str(failed(error)), self.last) from error

    def _culprit(
        self, stage: str, name: str, detail: str, before: str, after: str = ""
    ) -> _CulpritError:
        return _CulpritError(Culprit(stage, name, detail, before, after, self.checked))


def _kernel(error: Exception) -> str:
    message = str(error)
    _, separator, rest = message.partition("kernel ")
    return rest.split()[0] if separator and rest else ""


def _of_sizes(program: Any, example: Example) -> Any:
    """Return a program with the sizes of an example as its hints."""
    facts = getattr(program, "facts", None)
    if facts is None:
        return program
    for symbol, _ in facts.hints:
        if symbol.name in example.sizes:
            facts = facts.with_hint(symbol, example.sizes[symbol.name])
    return evolve(program, facts=facts)


def _parts(program: Any) -> Iterator[Any]:
    """Yield a program and the programs that it calls."""
    yield program
    for called in ("subprograms", "subschedules"):
        for part in getattr(program, called, ()):
            yield from _parts(part)
