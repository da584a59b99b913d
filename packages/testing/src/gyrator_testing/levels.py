"""Interpreting programs of any level."""

from collections.abc import Mapping, Sequence
from typing import Any

from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Schedule
from gyrator_ir.levels import Program
from gyrator_ir.tile.nodes import TileProgram
from gyrator_testing.interp.dtypes import Array
from gyrator_testing.interp.externs import DEFAULT, Externs
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.kernel import run_schedule
from gyrator_testing.interp.loop import NO_CONSTANTS, run_loop
from gyrator_testing.interp.tile import run_tile_program


def run_program(
    program: Program,
    inputs: Sequence[object],
    constants: Mapping[str, Array] = NO_CONSTANTS,
    externs: Externs = DEFAULT,
) -> list[Any]:
    """Interpret a program of any level; see `run_loop`."""
    match program:
        case HostProgram():
            return run_host(program, inputs, constants, externs)
        case Schedule():
            return run_schedule(program, inputs, constants, externs)
        case TileProgram():
            return run_tile_program(program, inputs, constants, externs)
    return run_loop(program, inputs, constants, externs)
