"""Printer of Loop IR. `parse(show(p)) == p` for every program that verifies."""

from collections.abc import Sequence

from gyrator_ir.body.nodes import Axis
from gyrator_ir.body.print import show_statement
from gyrator_ir.body.rewrite import AnyStatement
from gyrator_ir.loop.forms import CALLS, TEMPLATE
from gyrator_ir.loop.formulas import show_formula
from gyrator_ir.loop.nodes import (
    CallOperation,
    LoopProgram,
    Operation,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    Template,
)
from gyrator_ir.text.forms import ORIGINS
from gyrator_ir.text.lines import indented
from gyrator_ir.text.program import (
    AXES,
    show_buffer,
    show_preamble,
    show_user_kernels,
)
from gyrator_ir.text.scanner import Writer
from gyrator_ir.text.values import OUTPUTS

__all__ = ["show"]

VERSION = 1
KIND = "loop.program"


def show(program: LoopProgram) -> str:
    """Print a program; the same program always prints the same bytes."""
    return "\n".join(_program(program)) + "\n"


def show_operation(op: Operation, writer: Writer) -> list[str]:
    """Print one operation; the first line is its head."""
    match op:
        case Pointwise(name, axes, body, origins) | Scatter(name, axes, body, origins):
            verb = "pointwise" if isinstance(op, Pointwise) else "scatter"
            head = f"{verb} {name} {AXES.show(axes, writer)}{_origins(origins, writer)}"
            return [head, *_body(body, writer)]
        case Reduction(name, axes, inner, body, reduce, stores, origins):
            head = _over("reduction", name, axes, inner, origins, writer)
            return [head, *_body((*body, reduce, *stores), writer)]
        case Scan(name, axes, line, body, scan, stores, origins):
            head = _over("scan", name, axes, (line,), origins, writer)
            return [head, *_body((*body, scan, *stores), writer)]
        case Sort(name, axes, line, body, sort, stores, origins):
            head = _over("sort", name, axes, (line,), origins, writer)
            return [head, *_body((*body, sort, *stores), writer)]
    return show_call(op, writer)


def show_call(op: CallOperation, writer: Writer) -> list[str]:
    """Print an operation that the host executes."""
    if isinstance(op, Template):
        return _template(op, writer)
    return [CALLS.by_class[type(op)].head(op, writer)]


def _over(
    verb: str,
    name: str,
    axes: Sequence[Axis],
    inner: Sequence[Axis],
    origins: tuple[int, ...],
    w: Writer,
) -> str:
    return f"{verb} {name} {AXES.show(axes, w)} over {AXES.show(inner, w)}{_origins(origins, w)}"


def _body(body: Sequence[AnyStatement], writer: Writer) -> list[str]:
    return indented([show_statement(s, writer) for s in body])


def _origins(origins: tuple[int, ...], writer: Writer) -> str:
    return f" {ORIGINS.show(origins, writer)}" if origins else ""


def _template(op: Template, writer: Writer) -> list[str]:
    head = "template" + "".join(part.show(op, writer) for part in TEMPLATE)
    calls = () if op.fallback is None else show_call(op.fallback, writer)
    formulas = [line for f in op.formulas for line in show_formula(f)]
    return [head, *indented([*(f"fallback {line}" for line in calls), *formulas])]


def _program(p: LoopProgram) -> list[str]:
    writer = Writer({b.name: b for b in p.all_buffers})
    lines = show_preamble(p.origins, p.facts, p.inputs, p.constants, writer)
    lines += [f"buffer {show_buffer(b, writer)}" for b in p.buffers]
    lines += show_user_kernels(p.user_kernels, writer)
    for op in p.operations:
        lines += show_operation(op, writer)
    lines.append(f"return {OUTPUTS.show(p.outputs, writer)}".rstrip())
    for sub in p.subprograms:
        lines += _program(sub)
    return [f"{KIND} {VERSION} @{p.name}", *indented(lines)]
