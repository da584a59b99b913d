"""The three IR levels behind one set of functions: text, verifier and interpreter of each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.parse import parse as parse_host
from gyrator_ir.host.print import KIND as HOST
from gyrator_ir.host.print import show as show_host
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.kernel.nodes import Schedule
from gyrator_ir.kernel.parse import parse as parse_schedule
from gyrator_ir.kernel.print import KIND as KERNEL
from gyrator_ir.kernel.print import show as show_schedule
from gyrator_ir.kernel.verify import verify as verify_schedule
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.loop.parse import parse as parse_loop
from gyrator_ir.loop.print import KIND as LOOP
from gyrator_ir.loop.print import show as show_loop
from gyrator_ir.loop.verify import verify as verify_loop
from gyrator_ir.text.program import header_kind
from gyrator_testing.interp.dtypes import Array
from gyrator_testing.interp.externs import DEFAULT, Externs
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.kernel import run_schedule
from gyrator_testing.interp.loop import NO_CONSTANTS, run_loop

Program = LoopProgram | Schedule | HostProgram


@frozen
class Level:
    """What can be done with the programs of a level."""

    cls: type
    kind: str
    """First word of the text."""
    show: Callable[[Any], str]
    parse: Callable[[str], Any]
    verify: Callable[[Any], Any]
    run: Callable[[Any, Sequence[object], Mapping[str, Array], Externs], list[Any]]


LEVELS = (
    Level(LoopProgram, LOOP, show_loop, parse_loop, verify_loop, run_loop),
    Level(Schedule, KERNEL, show_schedule, parse_schedule, verify_schedule, run_schedule),
    Level(HostProgram, HOST, show_host, parse_host, verify_host, run_host),
)


def level_of(program: object) -> Level:
    """Return the level of a program.

    Raises:
        TypeError: when it is no program.
    """
    for level in LEVELS:
        if isinstance(program, level.cls):
            return level
    raise TypeError(f"{type(program).__name__} is no program of any level")


def parse_program(text: str) -> Program:
    """Read a program of the level that the first line of `text` declares.

    Raises:
        ParseError: when it is none.
    """
    kind = header_kind(text)
    program: Program = next(level for level in LEVELS if level.kind == kind).parse(text)
    return program


def run_program(
    program: Program,
    inputs: Sequence[object],
    constants: Mapping[str, Array] = NO_CONSTANTS,
    externs: Externs = DEFAULT,
) -> list[Any]:
    """Interpret a program of any level; see `run_loop`."""
    return level_of(program).run(program, inputs, constants, externs)
