"""What a pass is, how a pipeline of passes runs and is traced, and how a user edits one by name.

Nothing here needs the IR: a `Level` says what a pipeline's programs are.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches, unified_diff
from time import perf_counter
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import attrs
from attrs import define, evolve, field, frozen

from gyrator_ir.deadline import NEVER, Deadline
from gyrator_ir.diagnostics import GyratorError, VerifyError

M = TypeVar("M")


class Pass(Protocol[M]):
    """A frozen attrs class whose fields are its options."""

    name: ClassVar[str]

    def run(self, program: M, /) -> M | bool:
        """Return a new program, or the very same object where nothing changed; on a level whose
        programs are changed in place, whether the program was."""
        ...


@frozen
class Off(Generic[M]):
    """A pass that does not run, as options have it, and keeps its place."""

    one: Pass[M]

    @property
    def name(self) -> str:
        """The name of the pass."""
        return self.one.name


def when(condition: bool, one: Pass[M]) -> Pass[M] | Off[M]:
    """Return a pass, or where the condition does not hold, a pass that is off."""
    return one if condition else Off(one)


class PassError(GyratorError):
    """A pass, level or option of a pass that does not exist."""


@frozen
class Level(Generic[M]):
    """A kind of program that passes run over."""

    name: str
    cls: type[M]
    show: Callable[[M], str]
    verify: Callable[[M], M]
    """Returns the program itself; a level of graphs also makes them runnable again."""
    parse: Callable[[str], M] | None = None
    kind: str = ""
    """First word of the text, of a level that can be parsed."""
    in_place: bool = False
    """Passes change the program, as it is with graphs of PyTorch's."""


@frozen
class Step:
    """What one pass did to one program."""

    level: str
    name: str
    changed: bool
    seconds: float
    before: str = ""
    """Text, if it was asked for."""
    after: str = ""

    def diff(self) -> str:
        """Return what the pass changed of the text, as a unified diff; empty if nothing."""
        old, new = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(unified_diff(old, new, self.level, f"{self.level} after {self.name}"))


@define
class Tracer:
    """Keeps what passes do, and with `texts` what programs look like before and after."""

    texts: bool = False
    steps: list[Step] = field(factory=list)
    deadline: Deadline = NEVER
    """When what is traced has to be done."""

    def run(self, level: Level[M], one: Pass[M], program: M) -> tuple[M, bool]:
        """Run a pass; return the program, and whether it changed.

        Raises:
            LateError: GY-COMPILE-003, when there is no time left for it.
        """
        self.deadline.check(f"pass {one.name!r}")
        before = level.show(program) if self.texts else ""
        start = perf_counter()
        program, changed = _run(level, one, program)
        seconds = perf_counter() - start
        after = level.show(program) if self.texts and changed else before
        self.steps.append(Step(level.name, one.name, changed, seconds, before, after))
        return program, changed


def _run(level: Level[M], one: Pass[M], program: M) -> tuple[M, bool]:
    made = one.run(program)
    if level.in_place and isinstance(made, bool):
        return program, made
    if level.in_place or not isinstance(made, level.cls):
        said = f"pass {one.name!r} of the level {level.name} returned a {type(made).__name__}"
        wanted = "whether it changed its argument" if level.in_place else f"a {level.cls.__name__}"
        help = f"return {wanted}"
        raise PassError.of("GY-PASS-011", said, help=help)
    return made, made is not program


@frozen
class Pipeline(Generic[M]):
    """Passes in order. A value: build it, edit it, hand it over; there is no global one."""

    level: Level[M]
    passes: tuple[Pass[M] | Off[M], ...]
    verify: Literal["never", "end", "each"] = "end"
    """Which programs are verified: none, the last one if a pass changed it, or whatever a pass
    changed."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all passes, also of those that are off."""
        return tuple(p.name for p in self.passes)

    @property
    def running(self) -> tuple[Pass[M], ...]:
        """The passes that are not off."""
        return tuple(p for p in self.passes if not isinstance(p, Off))

    @property
    def table(self) -> dict[str, Pass[M]]:
        """All passes by name, also those that are off."""
        return {p.name: p.one if isinstance(p, Off) else p for p in self.passes}

    def run(self, program: M, tracer: Tracer | None = None) -> M:
        """Run the passes in order.

        Raises:
            PassError: GY-PASS-011, when a pass returns something else than a program.
            VerifyError: when a pass broke an invariant; with `verify="each"` it says which.
        """
        run = _run if tracer is None else tracer.run
        any_changed = False
        for one in self.running:
            program, changed = run(self.level, one, program)
            any_changed |= changed
            if changed and self.verify == "each":
                program = self._verified(program, one)
        return self.level.verify(program) if any_changed and self.verify == "end" else program

    def until(self, name: str, included: bool) -> "Pipeline[M]":
        """Return the passes before the first of this name, or up to it."""
        place = self.names.index(name) + included
        return evolve(self, passes=self.passes[:place])

    def _verified(self, program: M, one: Pass[M]) -> M:
        where = f"pass {one.name!r} of the level {self.level.name}"
        try:
            return self.level.verify(program)
        except VerifyError as error:
            found = error.diagnostic
            raise VerifyError(evolve(found, provenance=(*found.provenance, where))) from error
        except RuntimeError as error:  # what PyTorch raises for a graph that is none
            said = f"the program that a pass made is not well-formed: {error}"
            raise VerifyError.of("GY-PASS-013", said, provenance=(where,)) from error


# Edits ------------------------------------------------------------------------------------------


@frozen
class Edit:
    """One change of pipelines. `first`, `last` and `only` concern a level, others a pass."""

    verb: Literal["without", "before", "after", "replaced", "configured", "first", "last", "only"]
    name: str = ""
    level: str = ""
    """Empty: all levels that have a pass of this name."""
    passes: tuple[Pass[Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def apply(self, pipeline: Pipeline[M]) -> Pipeline[M]:
        """Return the pipeline with this change, or itself if it is of another level."""
        if self.level not in ("", pipeline.level.name):
            return pipeline
        old, new = pipeline.passes, self.passes
        match self.verb:
            case "first":
                return evolve(pipeline, passes=(*new, *old))
            case "last":
                return evolve(pipeline, passes=(*old, *new))
            case "only":
                return evolve(pipeline, passes=new)
        if self.name not in pipeline.names:
            return pipeline
        made = (q for p in old for q in (self._instead(p) if p.name == self.name else (p,)))
        return evolve(pipeline, passes=tuple(made))

    def _instead(self, one: Pass[Any] | Off[Any]) -> tuple[Pass[Any] | Off[Any], ...]:
        match self.verb:
            case "before":
                return (*self.passes, one)
            case "after":
                return (one, *self.passes)
            case "without":
                return ()
        inside = one.one if isinstance(one, Off) else one
        made = self.passes
        if self.verb == "configured":
            made = (configured(inside, dict(self.options)),)
        return tuple(when(inside is one, p) for p in made)


@frozen
class PassEdits:
    """Changes of the pipelines of all levels, in order. Each method returns a longer value.

        PassEdits().without("pad-products").after("inline-pointwise", MyPass())

    `level` is needed only where several levels have a pass of one name and not all are meant.
    """

    edits: tuple[Edit, ...] = ()

    def without(self, *names: str, level: str = "") -> "PassEdits":
        """Drop passes."""
        return PassEdits((*self.edits, *(Edit("without", n, level) for n in names)))

    def before(self, name: str, *passes: Pass[Any], level: str = "") -> "PassEdits":
        """Run passes right before another."""
        return self._with(Edit("before", name, level, _checked(passes)))

    def after(self, name: str, *passes: Pass[Any], level: str = "") -> "PassEdits":
        """Run passes right after another."""
        return self._with(Edit("after", name, level, _checked(passes)))

    def replaced(self, name: str, *passes: Pass[Any], level: str = "") -> "PassEdits":
        """Run passes instead of another, and only when that would run."""
        return self._with(Edit("replaced", name, level, _checked(passes)))

    def configured(self, name: str, *, level: str = "", **options: Any) -> "PassEdits":
        """Set options of a pass."""
        return self._with(Edit("configured", name, level, options=tuple(options.items())))

    def first(self, level: str, *passes: Pass[Any]) -> "PassEdits":
        """Run passes before all others of a level."""
        return self._with(Edit("first", "", level, _checked(passes)))

    def last(self, level: str, *passes: Pass[Any]) -> "PassEdits":
        """Run passes after all others of a level."""
        return self._with(Edit("last", "", level, _checked(passes)))

    def only(self, level: str, *passes: Pass[Any]) -> "PassEdits":
        """Run these passes, perhaps none, instead of all of a level."""
        return self._with(Edit("only", "", level, _checked(passes)))

    def apply(self, pipeline: Pipeline[M]) -> Pipeline[M]:
        """Return a pipeline with the changes that concern it; if any does, what each pass makes
        is verified."""
        made = pipeline
        for edit in self.edits:
            made = edit.apply(made)
        return pipeline if made is pipeline else evolve(made, verify="each")

    def check(self, pipelines: Iterable[Pipeline[Any]]) -> None:
        """Refuse what these pipelines, one of each level, do not have.

        Raises:
            PassError: GY-PASS-001 for an unknown pass, GY-PASS-002 for an unknown option,
                GY-PASS-009 for an unknown level.
        """
        known = {p.level.name: p for p in pipelines}
        for edit in self.edits:
            if edit.level and edit.level not in known:
                said = f"there is no level {edit.level!r} of passes"
                raise PassError.of("GY-PASS-009", said, help=nearest(edit.level, known))
            meant = {edit.level: known[edit.level]} if edit.level else known
            names = {name: p for p in meant.values() for name in p.names}
            if edit.name and edit.name not in names:
                where = f" on the level {edit.level}" if edit.level else ""
                listed = "; ".join(f"{n}: {', '.join(p.names) or 'none'}" for n, p in meant.items())
                near = get_close_matches(edit.name, names, n=3)
                help = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
                said = f"there is no pass {edit.name!r}{where}"
                raise PassError.of("GY-PASS-001", said, help=f"{help}there are {listed}")
            known = {name: edit.apply(p) for name, p in known.items()}

    def _with(self, edit: Edit) -> "PassEdits":
        return PassEdits((*self.edits, edit))


NO_EDITS = PassEdits()


def configured(one: Any, options: Mapping[str, Any]) -> Any:
    """Return a pass with other options.

    Raises:
        PassError: GY-PASS-002 for an unknown option.
    """
    known = {f.name: f for f in attrs.fields(type(one)) if f.init}
    for name in options:
        if name not in known:
            said = f"pass {one.name!r} has no option {name!r}"
            raise PassError.of("GY-PASS-002", said, help=nearest(name, known))
    return evolve(one, **options)


def nearest(name: str, known: Mapping[str, object]) -> str:
    """Say which known name may be meant, or all of them."""
    near = get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(sorted(known))}" if known else "there are none"


def _checked(passes: tuple[Any, ...]) -> tuple[Any, ...]:
    for one in passes:
        if not attrs.has(type(one)) or not hasattr(one, "run") or not isinstance(one.name, str):
            said = f"{one!r} is no pass"
            help = "pass an object of a frozen attrs class with `name` and `run`"
            raise PassError.of("GY-PASS-010", said, help=help)
    return passes
