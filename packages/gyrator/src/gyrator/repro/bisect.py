"""Which stage, which pass and which kernel first computes something else than the graph says.

The product's own stages run one after another, and what each leaves is interpreted: the graph by
PyTorch, the levels of IR by the interpreters of `gyrator_testing`. A pass is judged by what goes in
and what comes out of it, a stage by the results of the graph, a kernel beside its IR.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

from attrs import define, evolve, field, frozen
from torch.fx import GraphModule

from gyrator.autotune.kernels import Budget
from gyrator.engine.engine import Engine
from gyrator.engine.pipeline import Stages
from gyrator.options import make_options
from gyrator.repro.arrays import array_of, check_interpreters, tensor_of, torch_externs
from gyrator.repro.example import Example, difference, run_eagerly
from gyrator.repro.failure import failed
from gyrator.session import Session
from gyrator_ir.levels import HOST, KERNEL, LOOP, level_of
from gyrator_ir.passes import NO_EDITS, Level, Pass, PassEdits, Tracer
from gyrator_lowering.fx_passes import FX
from gyrator_lowering.fx_text.print import attribute

M = TypeVar("M")


@frozen
class Culprit:
    """Where results first differ, or where an exception comes from."""

    stage: str
    """A level of IR, whose passes or stage did it; `kernels`, the text of a kernel; `run`, the host
    program as it runs; empty for nothing found."""
    name: str = ""
    """Of the pass or the kernel; empty for the stage itself."""
    detail: str = ""
    before: str = ""
    """The text of the last program that was right."""
    after: str = ""
    """The text of the first that was not."""
    checked: int = 0
    """How many programs were interpreted."""

    def __str__(self) -> str:
        if not self.stage:
            return f"every stage and pass agrees: {self.checked} programs were interpreted"
        what = {"kernels": "kernel", "run": "host program"}.get(self.stage, "pass")
        named = f", {what} {self.name}" if self.name else ""
        return f"stage {self.stage}{named}: {self.detail}"


class _Found(Exception):
    """Carries the culprit out of the stages."""

    def __init__(self, culprit: Culprit) -> None:
        self.culprit = culprit


def bisect(
    text: str,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    passes: PassEdits = NO_EDITS,
) -> Culprit:
    """Compile the text of an ATen graph step by step; return the first step that is wrong.

    Raises:
        VerificationError: GY-VERIFY-010, where `gyrator_testing` is not installed.
        ParseError: as `gyrator_lowering.fx_text.parse`.
    """
    check_interpreters("bisecting")
    chosen = make_options(options={"cache": False, "progress": False, **(options or {})})
    with Session(options=chosen, passes=passes) as session:
        trials = tuple((e, e.eager()) for e in Example.of_sizes(text, seed))
        watch = _Watch(trials=trials, last=text)
        try:
            _step_by_step(session.engine(session.options), watch)
        except _Found as found:
            return found.culprit
    return Culprit("", checked=watch.checked)


def _step_by_step(engine: Engine, watch: "_Watch") -> None:
    gm, stages = watch.trials[0][0].gm, Stages(engine)
    budget = Budget(engine.options.autotune_seconds)
    options = stages.scheduler_options()
    graph = deepcopy(gm)
    with watch.stage(FX.name):
        passes = stages.prepare(graph, budget, watch)
    with watch.stage(LOOP.name):
        program = stages.lowered(graph, stages.lowering_options(graph, budget, passes))
        watch.judge(LOOP.name, program, watch.interpreter(program, graph))
    with watch.stage(KERNEL.name):
        planned = stages.scheduled(program, options, watch)
        watch.judge(KERNEL.name, planned, watch.interpreter(planned, graph))
    with watch.stage(HOST.name):
        host = stages.hosted(planned, options)
        watch.judge(HOST.name, host, watch.interpreter(host, graph))
    with watch.stage("tile"):
        stages.tiled(host, watch)
    with watch.stage("kernels"):
        stages.verify(host)
    with watch.stage("run"):
        call = engine.compile(deepcopy(gm), "inference").call
        watch.judge("run", host, lambda given: [*call(list(given))])


@define
class _Watch(Tracer):
    """Interprets what each pass is given and what it leaves."""

    trials: tuple[tuple[Example, list[Any]], ...] = field(kw_only=True)
    """Arguments, and what PyTorch makes of them: for graphs with symbols, of more than one size."""
    last: str = field(kw_only=True)
    """The text of the last program that was right."""
    checked: int = 0

    def run(self, level: Level[M], one: Pass[M], program: M) -> tuple[M, bool]:
        """Run a pass; raise where its result means something else."""
        before: Any = deepcopy(program) if level.in_place else program
        try:
            made, changed = super().run(level, one, program)
        except Exception as error:
            raise _Found(
                Culprit(
                    level.name, one.name, str(failed(error)), level.show(before), "", self.checked
                )
            ) from error
        if changed and (said := self._changed(before, made)):
            raise _Found(
                Culprit(
                    level.name, one.name, said, level.show(before), level.show(made), self.checked
                )
            )  # fmt: skip
        return made, changed

    def _changed(self, before: Any, after: Any) -> str:
        """Say how two programs differ in what they compute."""
        self.checked += 1
        if isinstance(after, GraphModule):
            return self._difference(lambda given: run_eagerly(after, given)[: -len(given) or None])
        from gyrator_testing.feeds import assert_same_meaning

        for example, _ in self.trials:
            first, second = _of_sizes(before, example), _of_sizes(after, example)
            try:
                assert_same_meaning(first, second, externs=torch_externs())
            except AssertionError as error:
                return " ".join(str(error).split())
        return ""

    def _difference(self, run: Callable[[list[Any]], list[Any]]) -> str:
        """Say how what `run` makes of arguments differs from what PyTorch makes of them."""
        for example, expected in self.trials:
            given = example.arguments()
            if said := difference([*run(given), *given], expected, example):
                return said
        return ""

    def interpreter(self, program: Any, graph: GraphModule) -> Callable[[list[Any]], list[Any]]:
        """Return what interprets a program of the whole graph."""
        from gyrator_testing.levels import run_program

        self.checked += 1
        keys = {c.key for part in _parts(program) for c in getattr(part, "constants", ())}
        held = {key: array_of(attribute(graph, key)) for key in keys}

        def run(given: list[Any]) -> list[Any]:
            arrays = [array_of(value) for value in given]
            return [*map(tensor_of, run_program(program, arrays, held, torch_externs()))]

        return run

    def judge(self, stage: str, program: Any, run: Callable[[list[Any]], list[Any]]) -> None:
        """Raise where a stage's results are not the graph's."""
        text = level_of(program).show(program)
        if said := self._difference(run):
            raise _Found(Culprit(stage, "", said, self.last, text, self.checked))
        self.last = text

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Take exceptions for the stage's."""
        try:
            yield
        except _Found:
            raise
        except Exception as error:
            kernel = _kernel(error) if name == "kernels" else ""
            raise _Found(
                Culprit(name, kernel, str(failed(error)), self.last, "", self.checked)
            ) from error


def _kernel(error: Exception) -> str:
    said = str(error)
    _, found, rest = said.partition("kernel ")
    return rest.split()[0] if found and rest else ""


def _of_sizes(program: Any, example: Example) -> Any:
    """Return a program that takes the sizes of an example for the usual ones."""
    facts = getattr(program, "facts", None)
    if facts is None:
        return program
    for symbol, _ in facts.hints:
        if symbol.name in example.sizes:
            facts = facts.with_hint(symbol, example.sizes[symbol.name])
    return evolve(program, facts=facts)


def _parts(program: Any) -> Iterator[Any]:
    """Yield a program and those that it calls."""
    yield program
    for called in ("subprograms", "subschedules"):
        for part in getattr(program, called, ()):
            yield from _parts(part)
