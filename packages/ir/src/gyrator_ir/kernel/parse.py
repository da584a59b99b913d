"""Parser of Kernel IR, the inverse of `gyrator_ir.kernel.print`."""

from collections.abc import Mapping
from typing import Any

from gyrator_ir.body.parse import read_statement
from gyrator_ir.kernel.forms import FORMS
from gyrator_ir.kernel.nodes import (
    Kernel,
    KernelGroup,
    Launchable,
    Level,
    Local,
    Numerics,
    Schedule,
    ScheduleNode,
    Stage,
    TemplateKernel,
)
from gyrator_ir.kernel.print import KIND, VERSION
from gyrator_ir.loop.forms import CALLS, TEMPLATE_PARTS
from gyrator_ir.loop.formulas import read_formula
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.loop.parse import read_operation, read_return
from gyrator_ir.text.forms import ORIGINS, build
from gyrator_ir.text.lines import Line
from gyrator_ir.text.program import (
    PREAMBLE,
    read_axes,
    read_buffer,
    read_header,
    read_preamble,
    sections,
    sole,
    whole_buffers,
)
from gyrator_ir.text.scanner import Scanner, read_symbol

__all__ = ["parse"]

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
    schedule = build(line, Schedule, values)
    assert isinstance(schedule, Schedule)
    return schedule


def _node(line: Line, buffers: Mapping[str, Buffer]) -> ScheduleNode:
    if line.text.startswith("kernel "):
        return read_kernel(line)
    return read_operation(line, buffers)  # type: ignore[return-value]  # loops are no words here


def read_launchable(line: Line) -> Launchable:
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
    indices = {k.name: n for n, k in enumerate(kernels)}
    s = Scanner(line)
    s.expect("kernel")
    values: dict[str, Any] = {"name": s.name(), "kernels": kernels}
    s.expect("on")
    values["device"] = s.device()
    s.expect("together")
    s.expect("(")
    members: list[int] = []
    while not members or s.take(","):
        name = s.name()
        if name not in indices:
            line.fail(f"there is no kernel {name!r} below")
        members.append(indices[name])
    s.expect(")")
    s.end()
    group = build(line, KernelGroup, values | {"members": tuple(members)})
    assert isinstance(group, KernelGroup)
    return group


def _template_kernel(line: Line) -> TemplateKernel:
    below = sections(line, {"parameter": "parameters", "formula": "formulas"})
    parameters = tuple(map(_parameter, below["parameters"]))
    s = Scanner(line, {p.name: p for p in parameters})
    s.expect("kernel")
    values: dict[str, Any] = {"name": s.name(), "parameters": parameters}
    s.expect("on")
    values["device"] = s.device()
    s.expect("template")
    values |= {part.attribute: part.read(s) for part in TEMPLATE_PARTS}
    values["sizes"] = _symbols(s) if s.take("sizes") else ()
    values["origins"] = ORIGINS.read(s)
    values["formulas"] = tuple(map(read_formula, below["formulas"]))
    s.end()
    kernel = build(line, TemplateKernel, values)
    assert isinstance(kernel, TemplateKernel)
    return kernel


def read_kernel(line: Line) -> Kernel:
    """Parse a kernel with stages, as printed by `show_kernel`."""
    s = Scanner(line)
    s.expect("kernel")
    values: dict[str, Any] = {"name": s.name()}
    s.expect("on")
    values["device"] = s.device()
    values["axes"] = read_axes(s)
    values["inner"] = read_axes(s) if s.take("inner") else ()
    values["sizes"] = _symbols(s) if s.take("sizes") else ()
    values["numerics"] = next((n for n in Numerics if s.take(n.value)), Numerics.EAGER)
    values["origins"] = ORIGINS.read(s)
    s.end()
    groups = sections(
        line,
        {
            "refused": "refusals",
            "parameter": "parameters",
            "local": "locals",
            "outer": "stages",
            "inner": "stages",
        },
    )
    values["refusals"] = tuple(map(_item, groups["refusals"]))
    values["parameters"] = tuple(map(_parameter, groups["parameters"]))
    values["locals"] = tuple(map(_local, groups["locals"]))
    values["stages"] = tuple(map(_stage, groups["stages"]))
    kernel = build(line, Kernel, values)
    assert isinstance(kernel, Kernel)
    return kernel


def _symbols(s: Scanner) -> tuple[Any, ...]:
    s.expect("(")
    symbols = [read_symbol(s)]
    while s.take(","):
        symbols.append(read_symbol(s))
    s.expect(")")
    return tuple(symbols)


def _parameter(line: Line) -> Buffer:
    s = Scanner(line.leaf())
    s.expect("parameter")
    buffer = read_buffer(s)
    s.end()
    return buffer


def _local(line: Line) -> Local:
    s = Scanner(line.leaf())
    s.expect("local")
    name = s.name()
    s.expect(":")
    dtype = s.dtype()
    s.expect("[")
    local = Local(name, dtype, s.expr())
    s.expect("]")
    s.end()
    return local


def _stage(line: Line) -> Stage:
    if line.text not in Level.__members__.values():
        line.fail("expected `outer` or `inner` alone on its line")
    return Stage(Level(line.text), tuple(map(read_statement, line.children)))


def _item(line: Line) -> Any:
    s = Scanner(line)
    form = FORMS.find(s)
    assert form is not None, "sections are chosen by verbs"
    return form.read(s, lambda lines: ())
