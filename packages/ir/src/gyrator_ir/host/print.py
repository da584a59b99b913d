"""Printer of Wrapper IR. `parse(show(p)) == p` for every program that verifies."""

from collections.abc import Sequence

from gyrator_ir.host.forms import CAPTURE, FORMS, PARAMETER
from gyrator_ir.host.nodes import HostProgram, Instruction
from gyrator_ir.kernel.print import show_kernel
from gyrator_ir.text.forms import show_parts
from gyrator_ir.text.lines import indented
from gyrator_ir.text.program import show_preamble, show_user_kernels
from gyrator_ir.text.scanner import Writer, show_device

__all__ = ["show"]

VERSION = 1
KIND = "host.program"


def show(program: HostProgram) -> str:
    """Print a program; the same program always prints the same bytes."""
    return "\n".join(_program(program)) + "\n"


def show_instruction(i: Instruction, writer: Writer | None = None) -> list[str]:
    """Print an instruction and its nested bodies; the first line is its head."""
    return FORMS.by_class[type(i)].show(i, writer or Writer(), show_instructions)


def show_instructions(instructions: Sequence[Instruction], writer: Writer) -> list[str]:
    """Print instructions in order."""
    return [line for i in instructions for line in show_instruction(i, writer)]


def _program(p: HostProgram) -> list[str]:
    writer = Writer()
    lines = show_preamble(p.origins, p.facts, (), p.constants, writer)
    lines += ["parameter" + show_parts(PARAMETER, x, writer) for x in p.parameters]
    if p.capture is not None:
        lines.append("capture" + show_parts(CAPTURE, p.capture, writer))
    if p.home is not None:
        lines.append(f"home {show_device(p.home)}")
    lines += show_user_kernels(p.user_kernels, writer)
    for kernel in p.kernels:
        lines += show_kernel(kernel, writer)
    lines += ["do", *indented(show_instructions(p.instructions, writer))]
    for sub in p.subprograms:
        lines += _program(sub)
    return [f"{KIND} {VERSION} @{p.name}", *indented(lines)]
