"""Text to Loop IR: the reverse of `gyrator_ir.loop.print`, form by form."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from gyrator_ir.loop.body import (
    Bind,
    Check,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanKind,
    ScanStep,
    SortStep,
    Store,
    StoreMode,
)
from gyrator_ir.loop.forms import CALLS, TEMPLATE
from gyrator_ir.loop.nodes import (
    Buffer,
    Extern,
    LoopProgram,
    Operation,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    Template,
)
from gyrator_ir.loop.print import KIND, VERSION
from gyrator_ir.loop.rewrite import AnyStatement
from gyrator_ir.text.forms import ORIGINS, build, peek
from gyrator_ir.text.lines import Line
from gyrator_ir.text.program import (
    PREAMBLE,
    read_axes,
    read_header,
    read_preamble,
    sections,
    sole,
    whole_buffers,
)
from gyrator_ir.text.scanner import Scanner, symbol_named
from gyrator_ir.text.values import OUTPUTS

LOOPS = ("pointwise", "scatter", "reduction", "scan", "sort")
OPERATIONS = {*LOOPS, "template", *(form.verb for form in CALLS.forms)}
"""First words of operations."""


def parse(text: str) -> LoopProgram:
    """Read one program. Blank lines, and lines that begin with `;`, are skipped.

    Raises:
        ParseError: GY-PARSE-001 where something else was expected, GY-PARSE-002 for another
            version of the form, GY-PARSE-003 where a node refuses its values. The message quotes
            the line and its number.
    """
    return _program(sole(text, KIND))


def _program(line: Line) -> LoopProgram:
    name = read_header(line, KIND, VERSION)
    words = PREAMBLE | dict.fromkeys(OPERATIONS, "operations")
    groups = sections(line, words | {"return": "return", KIND: "subprograms"})
    preamble = read_preamble(groups)
    buffers = whole_buffers(preamble)
    values = preamble | {
        "name": name,
        "operations": tuple(read_operation(c, buffers) for c in groups["operations"]),
        "outputs": read_return(line, groups["return"], buffers),
        "subprograms": tuple(map(_program, groups["subprograms"])),
    }
    found = build(line, LoopProgram, values)
    assert isinstance(found, LoopProgram)
    return found


def read_return(
    program: Line, lines: Sequence[Line], buffers: Mapping[str, Buffer]
) -> tuple[Any, ...]:
    """Read the only `return` line of a program."""
    if len(lines) != 1:
        (lines[1] if lines else program).fail("expected one `return`")
    s = Scanner(lines[0].leaf(), buffers)
    s.expect("return")
    outputs: tuple[Any, ...] = OUTPUTS.read(s)
    s.end()
    return outputs


def read_operation(line: Line, buffers: Mapping[str, Buffer]) -> Operation:
    """Read what `show_operation` writes."""
    s = Scanner(line, buffers)
    verb = peek(s)[0]
    found: Any
    if verb in LOOPS:
        found = _loop(s, verb)
    elif verb == "template":
        found = _template(s, buffers)
    else:
        form = CALLS.by_verb.get((False, verb))
        if form is None:
            line.fail(f"expected an operation ({', '.join(sorted(OPERATIONS))}), got {verb!r}")
        found = form.read(s, _nothing_below)
    return found  # type: ignore[no-any-return]  # each branch builds an operation


def _nothing_below(lines: tuple[Line, ...]) -> tuple[Any, ...]:
    raise AssertionError(f"no form has blocks: {lines}")


def _loop(s: Scanner, verb: str) -> Operation:
    s.expect(verb)
    name = s.name()
    axes = read_axes(s)
    inner = None
    if verb in ("reduction", "scan", "sort"):
        s.expect("over")
        inner = read_axes(s)
    values = {"name": name, "axes": axes, "origins": ORIGINS.read(s)}
    s.end()
    statements = tuple(read_statement(c) for c in s.line.children)
    if inner is None:
        cls = Pointwise if verb == "pointwise" else Scatter
        made = build(s.line, cls, values | {"body": statements})
    else:
        made = _collective(s.line, verb, values, inner, statements)
    return made  # type: ignore[no-any-return]  # one of the loop operations


def _collective(
    line: Line,
    verb: str,
    values: dict[str, Any],
    inner: tuple[Any, ...],
    statements: tuple[AnyStatement, ...],
) -> Any:
    cls, step = {
        "reduction": (Reduction, Reduce),
        "scan": (Scan, ScanStep),
        "sort": (Sort, SortStep),
    }[verb]
    places = [k for k, s in enumerate(statements) if isinstance(s, Reduce | ScanStep | SortStep)]
    if len(places) != 1 or not isinstance(statements[places[0]], step):
        line.fail(f"expected one {verb} step below it")
    at = places[0]
    for k in range(at + 1, len(statements)):
        if not isinstance(statements[k], Store):
            line.children[k].fail(f"expected only stores after the {verb} step")
    if verb != "reduction" and len(inner) != 1:
        line.fail(f"expected a {verb} to run over one axis")
    field = {"reduction": "reduce"}.get(verb, verb)
    parts = {
        "inner": inner if verb == "reduction" else inner[0],
        "body": statements[:at],
        field: statements[at],
        "stores": statements[at + 1 :],
    }
    return build(line, cls, values | parts)


def _template(s: Scanner, buffers: Mapping[str, Buffer]) -> Template:
    s.expect("template")
    values = {part.attribute: part.read(s) for part in TEMPLATE}
    s.end()
    if len(s.line.children) != 1:
        s.line.fail("expected one `fallback` below it")
    below = Scanner(s.line.children[0], buffers)
    below.expect("fallback")
    values["fallback"] = CALLS.by_class[Extern].read(below, _nothing_below)
    found = build(s.line, Template, values)
    assert isinstance(found, Template)
    return found


# Statements -----------------------------------------------------------------------------------


def read_statement(line: Line) -> AnyStatement:
    """Read what `show_statement` writes."""
    s = Scanner(line.leaf())
    first = s.name()
    if first == "store" and not (s.looks("=") or s.looks(":") or s.looks(",")):
        found = _store(s)
    elif s.take("="):
        found = _load_or_bind(s, first)
    else:
        found = _typed(s, first)
    s.end()
    return found  # type: ignore[no-any-return]  # each branch builds a statement


def _mask(s: Scanner) -> str | None:
    return s.name() if s.take("if") else None


def _address(s: Scanner) -> dict[str, Any]:
    buffer = s.name()
    s.expect("[")
    index = s.expr()
    s.expect("]")
    return {"buffer": buffer, "index": index}


def _names(s: Scanner) -> tuple[str, ...]:
    names = [s.name()]
    while s.take(","):
        names.append(s.name())
    return tuple(names)


def _member(s: Scanner, words: type[StrEnum], what: str) -> Any:
    word = s.name()
    if word not in words.__members__.values():
        s.line.fail(f"expected {what} ({', '.join(words)}), got {word!r}")
    return words(word)


def _store(s: Scanner) -> Any:
    mode = _member(s, StoreMode, "a store mode") if s.take(".") else StoreMode.SET
    address = _address(s)
    s.expect(",")
    return build(s.line, Store, address | {"value": s.name(), "mode": mode, "mask": _mask(s)})


def _load_or_bind(s: Scanner, name: str) -> Any:
    if s.take("load"):
        return build(s.line, Load, {"name": name, **_address(s), "mask": _mask(s)})
    if not s.take("bind"):
        s.fail("`load` or `bind`; a computed value states its type, `c: f32 = add a, b`")
    value = s.name()
    s.expect("below")
    values = {
        "symbol": symbol_named(s, name),
        "value": value,
        "size": s.expr(),
        "wrap": s.take("wrap"),
        "check": _check(s),
        "mask": _mask(s),
    }
    return build(s.line, Bind, values)


def _check(s: Scanner) -> Check:
    if not s.take("check"):
        return Check.NONE
    if not s.take("."):
        return Check.INDEX
    s.expect("runtime")
    return Check.RUNTIME


def _typed(s: Scanner, first: str) -> Any:
    names = (first, *_names(s)) if s.take(",") else (first,)
    s.expect(":")
    dtype = s.dtype()
    s.expect("=")
    values: dict[str, Any] = {"dtype": dtype}
    cls: Callable[..., Any]
    if s.take("reduce"):
        s.expect(".")
        cls, values["names"] = Reduce, names
        values["kind"] = _member(s, ReduceKind, "a reduction")
        values["args"] = _names(s)
    elif s.take("scan"):
        s.expect(".")
        cls, values["names"] = ScanStep, names
        values["kind"] = _member(s, ScanKind, "a scan")
        values |= {"args": _names(s), "reverse": s.take("reverse")}
    elif s.take("sort"):
        cls, values["names"] = SortStep, names
        values["args"] = _names(s)
        values |= {"descending": s.take("descending"), "stable": s.take("stable")}
    else:
        if len(names) != 1:
            s.fail("`reduce`, `scan` or `sort`, which alone give several values")
        cls, values["name"] = _single(s, values), first
    return build(s.line, cls, values)


def _single(s: Scanner, values: dict[str, Any]) -> Callable[..., Any]:
    """Read `const 0.5`, `index i0` or `add a, b` into `values` and return the class."""
    if s.take("const"):
        values["value"] = s.number()
        return Const
    if s.take("index"):
        values["expr"] = s.expr()
        return IndexValue
    values["op"] = s.name()
    values["args"] = _names(s)
    return Let
