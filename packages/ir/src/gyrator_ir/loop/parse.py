"""Parser of Loop IR, the inverse of `gyrator_ir.loop.print`."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gyrator_ir.body.nodes import Reduce, ScanStep, SortStep, Store
from gyrator_ir.body.parse import read_statement
from gyrator_ir.body.rewrite import AnyStatement
from gyrator_ir.loop.forms import CALLS, TEMPLATE
from gyrator_ir.loop.formulas import read_formula
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
from gyrator_ir.text.forms import ORIGINS, build, peek, read_parts
from gyrator_ir.text.lines import Line
from gyrator_ir.text.program import (
    AXES,
    PREAMBLE,
    read_header,
    read_preamble,
    sections,
    sole,
    whole_buffers,
)
from gyrator_ir.text.scanner import Scanner, read_line
from gyrator_ir.text.values import OUTPUTS

__all__ = ["parse"]

LOOPS = ("pointwise", "scatter", "reduction", "scan", "sort")
OPERATIONS = {*LOOPS, "template", *(form.verb for form in CALLS.forms)}
"""First words of operations."""


def parse(text: str) -> LoopProgram:
    """Parse one program. Blank lines and lines that begin with `;` are skipped.

    Raises:
        ParseError: GY-PARSE-001 for a syntax error, GY-PARSE-002 for another version of the text
            form, GY-PARSE-003 for values that a node rejects. The message quotes the line and its
            number.
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
    return build(line, LoopProgram, values)


def read_return(
    program: Line, lines: Sequence[Line], buffers: Mapping[str, Buffer]
) -> tuple[Any, ...]:
    """Parse the only `return` line of a program."""
    if len(lines) != 1:
        (lines[1] if lines else program).fail("expected one `return`")
    return read_line(lines[0], "return", OUTPUTS.read, buffers)


def read_operation(line: Line, buffers: Mapping[str, Buffer]) -> Operation:
    """Parse the output of `show_operation`."""
    s = Scanner(line, buffers)
    verb = peek(s)[0]
    if verb in LOOPS:
        return _loop(s, verb)
    if verb == "template":
        return _template(s, buffers)
    form = CALLS.by_verb.get((False, verb))
    if form is None:
        line.fail(f"expected an operation ({', '.join(sorted(OPERATIONS))}), got {verb!r}")
    operation: Operation = form.read(s, _nothing_below)
    return operation


def _nothing_below(lines: tuple[Line, ...]) -> tuple[Any, ...]:
    raise AssertionError(f"no form has blocks: {lines}")


def _loop(s: Scanner, verb: str) -> Operation:
    s.expect(verb)
    name = s.name()
    axes = AXES.read(s)
    inner = None
    if verb in ("reduction", "scan", "sort"):
        s.expect("over")
        inner = AXES.read(s)
    values = {"name": name, "axes": axes, "origins": ORIGINS.read(s)}
    s.end()
    statements = tuple(read_statement(c) for c in s.line.children)
    if inner is not None:
        return _collective(s.line, verb, values, inner, statements)
    cls: Callable[..., Operation] = Pointwise if verb == "pointwise" else Scatter
    return build(s.line, cls, values | {"body": statements})


_COLLECTIVES: Mapping[str, tuple[Callable[..., Operation], type]] = MappingProxyType(
    {"reduction": (Reduction, Reduce), "scan": (Scan, ScanStep), "sort": (Sort, SortStep)}
)


def _collective(
    line: Line,
    verb: str,
    values: dict[str, Any],
    inner: tuple[Any, ...],
    statements: tuple[AnyStatement, ...],
) -> Operation:
    cls, step = _COLLECTIVES[verb]
    steps = [k for k, s in enumerate(statements) if isinstance(s, Reduce | ScanStep | SortStep)]
    if len(steps) != 1 or not isinstance(statements[steps[0]], step):
        line.fail(f"expected one {verb} step below it")
    position = steps[0]
    for k in range(position + 1, len(statements)):
        if not isinstance(statements[k], Store):
            line.children[k].fail(f"expected only stores after the {verb} step")
    if verb != "reduction" and len(inner) != 1:
        line.fail(f"expected a {verb} to run over one axis")
    field = {"reduction": "reduce"}.get(verb, verb)
    parts = {
        "inner": inner if verb == "reduction" else inner[0],
        "body": statements[:position],
        field: statements[position],
        "stores": statements[position + 1 :],
    }
    return build(line, cls, values | parts)


def _template(s: Scanner, buffers: Mapping[str, Buffer]) -> Template:
    s.expect("template")
    values = read_parts(TEMPLATE, s)
    s.end()
    below = sections(s.line, {"fallback": "calls", "formula": "formulas"})
    if len(below["calls"]) > 1:
        s.line.fail("expected at most one `fallback` below it")
    values["fallback"] = None
    for line in below["calls"]:
        call = Scanner(line, buffers)
        call.expect("fallback")
        values["fallback"] = CALLS.by_class[Extern].read(call, _nothing_below)
    values["formulas"] = tuple(map(read_formula, below["formulas"]))
    return build(s.line, Template, values)
