"""Parser of Kernel IR, the inverse of `gyrator_ir.kernel.print`."""

from collections.abc import Mapping, Sequence
from typing import Any

from gyrator_ir.body.parse import read_statement
from gyrator_ir.kernel import nodes
from gyrator_ir.kernel.forms import FORMS, KERNEL, TEMPLATE
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Schedule, TemplateKernel
from gyrator_ir.kernel.print import KIND, VERSION
from gyrator_ir.loop.forms import CALLS
from gyrator_ir.loop.formulas import read_formula
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.loop.parse import read_operation, read_return
from gyrator_ir.text.forms import NAMES, build, read_parts
from gyrator_ir.text.lines import Line
from gyrator_ir.text.program import (
    PREAMBLE,
    read_buffer,
    read_header,
    read_preamble,
    sections,
    sole,
    whole_buffers,
)
from gyrator_ir.text.scanner import Scanner, read_line

__all__ = ["parse"]

_BELOW = {
    "refused": "refusals",
    "parameter": "parameters",
    "local": "locals",
    "outer": "stages",
    "inner": "stages",
}
"""First words of the lines below a kernel, and the fields that they belong to."""
NODES = {"kernel", "template", *(form.verb for form in CALLS.forms)}
"""First words of the nodes of a schedule."""


def parse(text: str) -> Schedule:
    """Parse one schedule. Blank lines and lines that begin with `;` are skipped.

    Raises:
        ParseError: as `gyrator_ir.loop.parse.parse`.
    """
    return _schedule(sole(text, KIND))


def _schedule(line: Line) -> Schedule:
    name = read_header(line, KIND, VERSION)
    words = PREAMBLE | dict.fromkeys(NODES, "nodes")
    words |= {"life": "lifetimes", "partition": "partitions", "together": "together"}
    groups = sections(line, words | {"return": "return", KIND: "subschedules"})
    preamble = read_preamble(groups)
    buffers = whole_buffers(preamble)
    values = preamble | {
        "name": name,
        "nodes": tuple(_node(c, buffers) for c in groups["nodes"]),
        "outputs": read_return(line, groups["return"], buffers),
        "lifetimes": tuple(map(_item, groups["lifetimes"])),
        "partitions": tuple(map(_item, groups["partitions"])),
        "together": tuple(map(_item, groups["together"])),
        "subschedules": tuple(map(_schedule, groups["subschedules"])),
    }
    return build(line, Schedule, values)


def _node(line: Line, buffers: Mapping[str, Buffer]) -> nodes.ScheduleNode:
    if line.text.startswith("kernel "):
        return read_kernel(line)
    return read_operation(line, buffers)  # type: ignore[return-value]  # loops are no words here


def read_launchable(line: Line) -> nodes.Launchable:
    """Parse a kernel, kernel group or template kernel, as printed by `show_kernel`."""
    s = Scanner(line)
    s.expect("kernel")
    s.name()
    s.expect("on")
    s.device()
    if s.looks("together"):
        return _group(line)
    return _template_kernel(line) if s.looks("template") else read_kernel(line)


def _group(line: Line) -> KernelGroup:
    kernels = tuple(map(read_kernel, sections(line, {"kernel": "kernels"})["kernels"]))
    s = Scanner(line)
    s.expect("kernel")
    values: dict[str, Any] = {"name": s.name(), "kernels": kernels}
    s.expect("on")
    values["device"] = s.device()
    s.expect("together")
    members = NAMES.read(s)
    s.end()
    return build(line, KernelGroup, values | {"members": read_members(line, members, kernels)})


def read_members(line: Line, names: Sequence[str], kernels: Sequence[Kernel]) -> tuple[int, ...]:
    """Return the indices of a group's members, which its line names, among the kernels below it."""
    indices = {k.name: n for n, k in enumerate(kernels)}
    for name in names:
        if name not in indices:
            line.fail(f"there is no kernel {name!r} below")
    return tuple(indices[name] for name in names)


def _template_kernel(line: Line) -> TemplateKernel:
    below = sections(line, {"parameter": "parameters", "formula": "formulas"})
    parameters = tuple(map(_parameter, below["parameters"]))
    s = Scanner(line, {p.name: p for p in parameters})
    s.expect("kernel")
    values = read_parts(TEMPLATE, s)
    s.end()
    formulas = tuple(map(read_formula, below["formulas"]))
    return build(line, TemplateKernel, values | {"parameters": parameters, "formulas": formulas})


def read_kernel(line: Line) -> Kernel:
    """Parse a kernel with stages, as printed by `show_kernel`."""
    s = Scanner(line)
    s.expect("kernel")
    values = read_parts(KERNEL, s)
    s.end()
    groups = sections(line, _BELOW)
    values["refusals"] = tuple(map(_item, groups["refusals"]))
    values["parameters"] = tuple(map(_parameter, groups["parameters"]))
    values["locals"] = tuple(read_line(c, "local", _local) for c in groups["locals"])
    values["stages"] = tuple(map(_stage, groups["stages"]))
    return build(line, Kernel, values)


def _parameter(line: Line) -> Buffer:
    return read_line(line, "parameter", read_buffer)


def _local(s: Scanner) -> nodes.Local:
    name = s.name()
    s.expect(":")
    dtype = s.dtype()
    s.expect("[")
    local = nodes.Local(name, dtype, s.expr())
    s.expect("]")
    return local


def _stage(line: Line) -> nodes.Stage:
    if line.text not in nodes.Level.__members__.values():
        line.fail("expected `outer` or `inner` alone on its line")
    return nodes.Stage(nodes.Level(line.text), tuple(map(read_statement, line.children)))


def _item(line: Line) -> Any:
    s = Scanner(line)
    form = FORMS.find(s)
    assert form is not None, "sections are chosen by verbs"
    return form.read(s, lambda lines: ())
