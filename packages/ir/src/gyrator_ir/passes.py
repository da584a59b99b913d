"""Passes, pipelines of passes and their tracing, and edits of pipelines by pass name.

This module is independent of the IR: a `Level` describes the programs of a pipeline.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches, unified_diff
from time import perf_counter
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import attrs
from attrs import evolve, field

from gyrator_ir.deadline import NEVER, Deadline
from gyrator_ir.define import define, frozen
from gyrator_ir.diagnostics import GyratorError, VerifyError
from gyrator_ir.user_code import blamed, is_ours

M = TypeVar("M")


class Pass(Protocol[M]):
    """A frozen attrs class whose fields are its options."""

    name: ClassVar[str]

    def run(self, program: M, /) -> M | bool:
        """Return a new program, or the same object if nothing changed. On a level whose programs
        are changed in place, return whether the program changed."""
        ...


@frozen
class Off(Generic[M]):
    """A pass that is disabled by an option; it stays in the pipeline but does not run."""

    disabled: Pass[M]

    @property
    def name(self) -> str:
        """The name of the pass."""
        return self.disabled.name


def when(condition: bool, pass_: Pass[M]) -> Pass[M] | Off[M]:
    """Return the pass, disabled unless the condition holds."""
    return pass_ if condition else Off(pass_)


class PassError(GyratorError):
    """A pass, level or pass option does not exist, or a pass is invalid."""


@frozen
class Level(Generic[M]):
    """A kind of program that passes transform."""

    name: str
    cls: type[M]
    show: Callable[[M], str]
    verify: Callable[[M], M]
    """Returns the verified program itself. For FX graphs, it also recompiles the module."""
    parse: Callable[[str], M] | None = None
    kind: str = ""
    """First word of the text form, for a level that can be parsed."""
    in_place: bool = False
    """Passes change programs in place, as with FX graphs."""


@frozen
class Step:
    """The record of one pass applied to one program."""

    level: str
    name: str
    changed: bool
    seconds: float
    before: str = ""
    """Text of the program before the pass, if the tracer records texts."""
    after: str = ""

    def diff(self) -> str:
        """Return a unified diff of the text before and after the pass; empty if unchanged."""
        old, new = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(unified_diff(old, new, self.level, f"{self.level} after {self.name}"))


@define
class Tracer:
    """Records the steps of pipelines and, with `texts`, the programs before and after each step."""

    texts: bool = False
    steps: list[Step] = field(factory=list)
    deadline: Deadline = NEVER
    """The time limit of the stage that is traced."""

    def run(self, level: Level[M], pass_: Pass[M], program: M) -> tuple[M, bool]:
        """Run a pass and return the program and whether it changed.

        Raises:
            LateError: GY-COMPILE-003, if the deadline has passed.
        """
        self.deadline.check(f"pass {pass_.name!r}")
        before = level.show(program) if self.texts else ""
        start = perf_counter()
        program, changed = _run(level, pass_, program)
        seconds = perf_counter() - start
        after = level.show(program) if self.texts and changed else before
        self.steps.append(Step(level.name, pass_.name, changed, seconds, before, after))
        return program, changed


def _run(level: Level[M], pass_: Pass[M], program: M) -> tuple[M, bool]:
    try:
        result = pass_.run(program)
    except Exception as error:
        if isinstance(error, GyratorError) or is_ours(type(pass_)):
            raise
        why = blamed(error, type(pass_).run)
        message = f"pass {pass_.name!r} of the level {level.name} raised {why}"
        help = "this is not Gyrator's code: correct the pass, or remove it from `passes`"
        raise PassError.of("GY-PASS-014", message, help=help) from error
    if level.in_place and isinstance(result, bool):
        return program, result
    if level.in_place or not isinstance(result, level.cls):
        actual = type(result).__name__
        message = f"pass {pass_.name!r} of the level {level.name} returned a {actual}"
        expected = (
            "whether it changed its argument" if level.in_place else f"a {level.cls.__name__}"
        )
        raise PassError.of("GY-PASS-011", message, help=f"return {expected}")
    return result, result is not program


@frozen
class Pipeline(Generic[M]):
    """An ordered list of passes over one level, as an immutable value. There is no global one."""

    level: Level[M]
    passes: tuple[Pass[M] | Off[M], ...]
    verify: Literal["never", "end", "each"] = "end"
    """When to verify the program: never, at the end if any pass changed it, or after each pass that
    changed it."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all passes, including disabled ones."""
        return tuple(p.name for p in self.passes)

    @property
    def running(self) -> tuple[Pass[M], ...]:
        """The passes that are not disabled."""
        return tuple(p for p in self.passes if not isinstance(p, Off))

    @property
    def table(self) -> dict[str, Pass[M]]:
        """All passes by name, including disabled ones."""
        return {p.name: p.disabled if isinstance(p, Off) else p for p in self.passes}

    def run(self, program: M, tracer: Tracer | None = None) -> M:
        """Run the passes in order.

        Raises:
            PassError: GY-PASS-011, if a pass does not return a program, and GY-PASS-014, if a
                user's pass raises an error that is not a `GyratorError`.
            VerifyError: if a pass violates an invariant; with `verify="each"` it names the pass.
        """
        run = _run if tracer is None else tracer.run
        any_changed = False
        for pass_ in self.running:
            program, changed = run(self.level, pass_, program)
            any_changed |= changed
            if changed and self.verify == "each":
                program = self._verified(program, pass_)
        return self.level.verify(program) if any_changed and self.verify == "end" else program

    def until(self, name: str, included: bool) -> "Pipeline[M]":
        """Return the passes before the first one of this name, or up to and including it."""
        end = self.names.index(name) + included
        return evolve(self, passes=self.passes[:end])

    def _verified(self, program: M, pass_: Pass[M]) -> M:
        where = f"pass {pass_.name!r} of the level {self.level.name}"
        try:
            return self.level.verify(program)
        except VerifyError as error:
            diagnostic = error.diagnostic
            provenance = (*diagnostic.provenance, where)
            raise VerifyError(evolve(diagnostic, provenance=provenance)) from error
        except RuntimeError as error:  # PyTorch's error for a malformed graph
            message = f"the program that a pass returned is not well-formed: {error}"
            raise VerifyError.of("GY-PASS-013", message, provenance=(where,)) from error


# Edits ------------------------------------------------------------------------------------------


@frozen
class Edit:
    """One edit of pipelines. `first`, `last` and `only` apply to a level, the others to a pass."""

    verb: Literal["without", "before", "after", "replaced", "configured", "first", "last", "only"]
    name: str = ""
    level: str = ""
    """Empty for all levels that have a pass of this name."""
    passes: tuple[Pass[Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def apply(self, pipeline: Pipeline[M]) -> Pipeline[M]:
        """Return the pipeline with this edit applied, or itself if it is of another level."""
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
        passes = (q for p in old for q in (self._replacement(p) if p.name == self.name else (p,)))
        return evolve(pipeline, passes=tuple(passes))

    def _replacement(self, entry: Pass[Any] | Off[Any]) -> tuple[Pass[Any] | Off[Any], ...]:
        match self.verb:
            case "before":
                return (*self.passes, entry)
            case "after":
                return (entry, *self.passes)
            case "without":
                return ()
        pass_ = entry.disabled if isinstance(entry, Off) else entry
        passes = self.passes
        if self.verb == "configured":
            passes = (configured(pass_, dict(self.options)),)
        return tuple(when(pass_ is entry, p) for p in passes)


@frozen
class PassEdits:
    """A sequence of edits of the pipelines of all levels. Each method returns an extended sequence.

        PassEdits().without("pad-products").after("inline-pointwise", MyPass())

    `level` restricts an edit to one level, if several levels have a pass of the same name.
    """

    edits: tuple[Edit, ...] = ()

    def without(self, *names: str, level: str = "") -> "PassEdits":
        """Remove passes."""
        return PassEdits((*self.edits, *(Edit("without", n, level) for n in names)))

    def before(self, name: str, *passes: Pass[Any], level: str = "") -> "PassEdits":
        """Run `passes` directly before the pass `name`."""
        return self._with(Edit("before", name, level, _checked(passes)))

    def after(self, name: str, *passes: Pass[Any], level: str = "") -> "PassEdits":
        """Run `passes` directly after the pass `name`."""
        return self._with(Edit("after", name, level, _checked(passes)))

    def replaced(self, name: str, *passes: Pass[Any], level: str = "") -> "PassEdits":
        """Run `passes` instead of the pass `name`, if that is not disabled."""
        return self._with(Edit("replaced", name, level, _checked(passes)))

    def configured(self, name: str, *, level: str = "", **options: Any) -> "PassEdits":
        """Set options of the pass `name`."""
        return self._with(Edit("configured", name, level, options=tuple(options.items())))

    def first(self, level: str, *passes: Pass[Any]) -> "PassEdits":
        """Run `passes` before all others of a level."""
        return self._with(Edit("first", "", level, _checked(passes)))

    def last(self, level: str, *passes: Pass[Any]) -> "PassEdits":
        """Run `passes` after all others of a level."""
        return self._with(Edit("last", "", level, _checked(passes)))

    def only(self, level: str, *passes: Pass[Any]) -> "PassEdits":
        """Run `passes`, possibly none, instead of all passes of a level."""
        return self._with(Edit("only", "", level, _checked(passes)))

    def apply(self, pipeline: Pipeline[M]) -> Pipeline[M]:
        """Return the pipeline with all edits applied. If any edit applies to it, the edited
        pipeline verifies the program after each pass."""
        edited = pipeline
        for edit in self.edits:
            edited = edit.apply(edited)
        return pipeline if edited is pipeline else evolve(edited, verify="each")

    def check(self, pipelines: Iterable[Pipeline[Any]]) -> None:
        """Check that the edits refer to existing passes and options of these pipelines, one of each
        level.

        Raises:
            PassError: GY-PASS-001 for an unknown pass, GY-PASS-002 for an unknown option,
                GY-PASS-003 for an invalid value, GY-PASS-009 for an unknown level.
        """
        by_level = {p.level.name: p for p in pipelines}
        for edit in self.edits:
            if edit.level and edit.level not in by_level:
                message = f"there is no level {edit.level!r} of passes"
                raise PassError.of("GY-PASS-009", message, help=nearest(edit.level, by_level))
            edited = {edit.level: by_level[edit.level]} if edit.level else by_level
            names = {name: p for p in edited.values() for name in p.names}
            if edit.name and edit.name not in names:
                where = f" on the level {edit.level}" if edit.level else ""
                listed = "; ".join(
                    f"{n}: {', '.join(p.names) or 'none'}" for n, p in edited.items()
                )
                near = get_close_matches(edit.name, names, n=3)
                help = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
                message = f"there is no pass {edit.name!r}{where}"
                raise PassError.of("GY-PASS-001", message, help=f"{help}there are {listed}")
            by_level = {name: edit.apply(p) for name, p in by_level.items()}

    def _with(self, edit: Edit) -> "PassEdits":
        return PassEdits((*self.edits, edit))


NO_EDITS = PassEdits()


def configured(pass_: Any, options: Mapping[str, Any]) -> Any:
    """Return a pass with some of its options replaced.

    Raises:
        PassError: GY-PASS-002 for an unknown option, GY-PASS-003 for a value that is not of the
            type of the field, or that its validator rejects.
    """
    fields = {f.name: f for f in attrs.fields(type(pass_)) if f.init}
    types = _field_types(type(pass_))
    for name, value in options.items():
        if name not in fields:
            message = f"pass {pass_.name!r} has no option {name!r}"
            raise PassError.of("GY-PASS-002", message, help=nearest(name, fields))
        type_ = types.get(name, Any)
        if fields[name].converter is None and not _is_of(value, type_):
            kind = type_.__name__ if isinstance(type_, type) else str(type_)
            message = f"option {name!r} of pass {pass_.name!r} cannot be {value!r}"
            help = f"it is of the type `{kind}`, now {getattr(pass_, name)!r}"
            raise PassError.of("GY-PASS-003", message, help=help)
    try:
        return evolve(pass_, **options)
    except (TypeError, ValueError) as error:
        message = f"pass {pass_.name!r}: {error}"
        help = "pass a value that the option's validator accepts"
        raise PassError.of("GY-PASS-003", message, help=help) from error


def _field_types(cls: type) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except NameError:  # names that only type checkers import
        return {}


def _is_of(value: Any, type_: Any) -> bool:
    """Return whether a value is of the type of a field; true for types that are not understood."""
    origin, args = get_origin(type_), get_args(type_)
    if origin in (Union, UnionType):
        return any(_is_of(value, choice) for choice in args)
    if origin is Literal:
        return any(type(value) is type(a) and value == a for a in args)
    if type_ in (None, NoneType):
        return value is None
    if type_ in (int, float):  # neither is a bool, and an int will do for a float
        return isinstance(value, int | type_) and not isinstance(value, bool)
    if isinstance(origin, type):
        items: Any = value
        if not isinstance(value, origin):
            return False
        if origin in (list, set, frozenset) or (origin is tuple and args[-1:] == (...,)):
            return all(_is_of(item, args[0]) for item in items)
        if origin is tuple:
            return len(items) == len(args) and all(map(_is_of, items, args))
        return True
    if isinstance(type_, type) and not getattr(type_, "_is_protocol", False):
        return isinstance(value, type_)
    return True


def nearest(name: str, names: Mapping[str, object]) -> str:
    """Return a help text that suggests the closest of `names`, or lists them all."""
    near = get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(sorted(names))}" if names else "there are none"


def _checked(passes: tuple[Any, ...]) -> tuple[Any, ...]:
    for p in passes:
        if problem := _no_pass(p):
            help = "pass an object of a frozen attrs class with `name` and `run`"
            raise PassError.of("GY-PASS-010", f"{p!r} is not a pass: {problem}", help=help)
    return passes


def _no_pass(p: Any) -> str:
    """Return why an object is not a pass; empty if it is one."""
    if isinstance(p, type):
        return "it is a class, not an object"
    if not attrs.has(type(p)):
        return f"{type(p).__name__} is not a class of attrs"
    if not callable(getattr(p, "run", None)):
        return f"{type(p).__name__} has no method `run`"
    if not isinstance(getattr(p, "name", None), str):
        return f"{type(p).__name__} has no `name`, a string that edits refer to"
    return ""
