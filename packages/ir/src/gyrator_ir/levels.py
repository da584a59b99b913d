"""The levels of IR, each with its name, text form and verifier."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.parse import parse as parse_host
from gyrator_ir.host.print import KIND as HOST_KIND
from gyrator_ir.host.print import show as show_host
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.kernel.nodes import Schedule
from gyrator_ir.kernel.parse import parse as parse_schedule
from gyrator_ir.kernel.print import KIND as KERNEL_KIND
from gyrator_ir.kernel.print import show as show_schedule
from gyrator_ir.kernel.verify import verify as verify_schedule
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.loop.parse import parse as parse_loop
from gyrator_ir.loop.print import KIND as LOOP_KIND
from gyrator_ir.loop.print import show as show_loop
from gyrator_ir.loop.verify import verify as verify_loop
from gyrator_ir.passes import Level
from gyrator_ir.text.program import header_kind
from gyrator_ir.tile.nodes import TileProgram
from gyrator_ir.tile.parse import parse as parse_tile
from gyrator_ir.tile.print import KIND as TILE_KIND
from gyrator_ir.tile.print import show as show_tile
from gyrator_ir.tile.verify import verify as verify_tile

Program = LoopProgram | Schedule | HostProgram | TileProgram

LOOP = Level("loop", LoopProgram, show_loop, verify_loop, parse_loop, LOOP_KIND)
KERNEL = Level("kernel", Schedule, show_schedule, verify_schedule, parse_schedule, KERNEL_KIND)
HOST = Level("host", HostProgram, show_host, verify_host, parse_host, HOST_KIND)
TILE = Level("tile", TileProgram, show_tile, verify_tile, parse_tile, TILE_KIND)

LEVELS: Mapping[str, Level[Any]] = MappingProxyType({v.name: v for v in (LOOP, KERNEL, HOST, TILE)})
"""The levels by name, in compilation order. A `TILE` program contains the kernels of a `HOST` one.
"""


def level_of(program: object, others: Iterable[Level[Any]] = ()) -> Level[Any]:
    """Return the level of a program: one of `LEVELS` or of `others`.

    Raises:
        TypeError: if it is not a program of any of them.
    """
    for level in (*LEVELS.values(), *others):
        if isinstance(program, level.cls):
            return level
    raise TypeError(f"{type(program).__name__} is not a program of any level")


def level_of_text(text: str, others: Iterable[Level[Any]] = ()) -> Level[Any]:
    """Return the level that the first line of a text declares: one of `LEVELS` or of `others`.

    Raises:
        ParseError: if the line does not declare any of them.
    """
    by_kind = {level.kind: level for level in (*LEVELS.values(), *others)}
    return by_kind[header_kind(text, by_kind)]


def parse_program(text: str) -> Program:
    """Parse a program of any level.

    Raises:
        ParseError: if the text is not a program.
    """
    parse = level_of_text(text).parse
    assert parse is not None
    program: Program = parse(text)
    return program
