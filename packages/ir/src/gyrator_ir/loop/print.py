"""Printer of Loop IR. `parse(show(p)) == p` for every program that verifies."""

from gyrator_ir.body.print import show_statement
from gyrator_ir.loop.forms import CALLS, TEMPLATE
from gyrator_ir.loop.formulas import show_formula
from gyrator_ir.loop.nodes import (
    CallOperation,
    LoopOperation,
    LoopProgram,
    Operation,
    Reduction,
    Scan,
    Sort,
    Template,
)
from gyrator_ir.loop.uses import inner_of, statements_of
from gyrator_ir.text.forms import ORIGINS, show_parts
from gyrator_ir.text.lines import indented
from gyrator_ir.text.program import AXES, show_buffer, show_preamble, show_user_kernels
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
    if not isinstance(op, LoopOperation):
        return show_call(op, writer)
    inner = inner_of(op)
    over = f" over {AXES.show(inner, writer)}" if isinstance(op, Reduction | Scan | Sort) else ""
    origins = f" {ORIGINS.show(op.origins, writer)}" if op.origins else ""
    verb = type(op).__name__.lower()
    head = f"{verb} {op.name} {AXES.show(op.axes, writer)}{over}{origins}"
    return [head, *indented([show_statement(s, writer) for s in statements_of(op)])]


def show_call(op: CallOperation, writer: Writer) -> list[str]:
    """Print an operation that the host executes."""
    if isinstance(op, Template):
        return _template(op, writer)
    return [CALLS.by_class[type(op)].head(op, writer)]


def _template(op: Template, writer: Writer) -> list[str]:
    head = "template" + show_parts(TEMPLATE, op, writer)
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
