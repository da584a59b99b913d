"""Parser of Wrapper IR, the inverse of `gyrator_ir.host.print`."""

from collections.abc import Callable
from typing import TypeVar

from gyrator_ir.host.forms import CAPTURE, FORMS, PARAMETER
from gyrator_ir.host.nodes import Capture, HostProgram, Instruction, Parameter
from gyrator_ir.host.print import KIND, VERSION
from gyrator_ir.kernel.parse import read_launchable
from gyrator_ir.text.forms import build, read_parts
from gyrator_ir.text.lines import Line
from gyrator_ir.text.program import PREAMBLE, read_header, read_preamble, sections, sole
from gyrator_ir.text.scanner import Scanner, read_line

__all__ = ["parse"]

Read = TypeVar("Read")
_WORDS = {
    **{word: group for word, group in PREAMBLE.items() if group not in ("inputs", "buffers")},
    "parameter": "parameters",
    "capture": "capture",
    "home": "home",
    "kernel": "kernels",
    "do": "instructions",
    KIND: "subprograms",
}


def parse(text: str) -> HostProgram:
    """Parse one program. Blank lines and lines that begin with `;` are skipped.

    Raises:
        ParseError: as `gyrator_ir.loop.parse.parse`.
    """
    return _program(sole(text, KIND))


def _program(line: Line) -> HostProgram:
    name = read_header(line, KIND, VERSION)
    groups = sections(line, _WORDS)
    if len(groups["instructions"]) != 1:
        line.fail("expected one `do` with the instructions below it")
    do = groups["instructions"][0]
    if do.text != "do":
        do.fail("expected `do` alone on its line")
    values = read_preamble(groups) | {
        "name": name,
        "parameters": tuple(map(_parameter, groups["parameters"])),
        "kernels": tuple(map(read_launchable, groups["kernels"])),
        "instructions": read_instructions(do.children),
        "subprograms": tuple(map(_program, groups["subprograms"])),
        "capture": _sole("capture", groups["capture"], _capture),
        "home": _sole("home", groups["home"], Scanner.device),
    }
    return build(line, HostProgram, values)


def _parameter(line: Line) -> Parameter:
    return read_line(line, "parameter", lambda s: Parameter(**read_parts(PARAMETER, s)))


def _sole(word: str, lines: list[Line], read: Callable[[Scanner], Read]) -> Read | None:
    """Parse the rest of an optional line, after `word`."""
    if not lines:
        return None
    if len(lines) > 1:
        lines[1].fail(f"expected one `{word}`")
    return read_line(lines[0], word, read)


def _capture(s: Scanner) -> Capture:
    return Capture(**read_parts(CAPTURE, s))


def read_instructions(lines: tuple[Line, ...]) -> tuple[Instruction, ...]:
    """Parse instructions in order."""
    return tuple(map(_instruction, lines))


def _instruction(line: Line) -> Instruction:
    s = Scanner(line)
    form = FORMS.find(s)
    if form is None:
        line.fail(f"expected an instruction ({FORMS.verbs()})")
    instruction: Instruction = form.read(s, read_instructions)
    return instruction
