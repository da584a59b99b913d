"""Stretches of a host program that become subprograms, for device graphs to stand for."""

from collections.abc import Sequence

from attrs import evolve, frozen

from gyrator_ir.host.nodes import (
    CallPartition,
    Capture,
    Free,
    HostProgram,
    Instruction,
    Launch,
    Parameter,
    ProfileRange,
    Ref,
    Return,
    TritonLaunch,
    WithDevice,
)
from gyrator_ir.host.walk import bound, free_names, freed, walk
from gyrator_ir.types import Device
from gyrator_scheduler.naming import fresh


@frozen
class Stretch:
    """Instructions from `start` up to `end`, that a graph of `device` captures."""

    start: int
    end: int
    device: Device
    written: frozenset[str]
    """Tensors that they write."""


def partitioned(program: HostProgram, stretches: Sequence[Stretch]) -> HostProgram:
    """Return the program with each stretch as a subprogram that a graph may stand for.

    A stretch takes what it uses from outside as parameters, and gives back what is used after it.
    Parameters are freed by the caller. Views must not cross a border.
    """
    out: list[Instruction] = []
    parts: list[HostProgram] = []
    at = 0
    given = program.instructions
    taken = {p.name for p in program.subprograms}
    for stretch in stretches:
        out += given[at : stretch.start]
        at = stretch.end
        inside = given[stretch.start : stretch.end]
        own = set(bound(inside))
        ended = [i for i in inside if isinstance(i, Free) and i.name not in own]
        body = tuple(i for i in inside if i not in ended)
        later = set(free_names(given[stretch.end :]))
        results = tuple(n for n in bound(body) if n in later and n not in freed(body))
        names = free_names(body)
        name = fresh(f"part{len(parts)}", taken)
        mutated = tuple(k for k, n in enumerate(names) if n in stretch.written)
        capture = Capture(stretch.device, mutated)
        parts.append(_part(program, name, body, names, results, capture))
        out.append(CallPartition(name, tuple(Ref(n) for n in names), results))
        out += ended
    out += given[at:]
    used = {i.kernel for i in walk(out) if isinstance(i, Launch)}
    return evolve(
        program,
        instructions=tuple(out),
        kernels=tuple(k for k in program.kernels if k.name in used),
        subprograms=(*program.subprograms, *parts),
    )


def _part(
    program: HostProgram,
    name: str,
    body: tuple[Instruction, ...],
    parameters: tuple[str, ...],
    results: tuple[str, ...],
    capture: Capture,
) -> HostProgram:
    launches = {i.kernel for i in walk(body) if isinstance(i, Launch)}
    users = {i.kernel for i in walk(body) if isinstance(i, TritonLaunch)}
    return HostProgram(
        name=name,
        parameters=tuple(Parameter(p, "tensor") for p in parameters),
        constants=(),
        kernels=tuple(
            evolve(k, name=f"{name}_{k.name}") for k in program.kernels if k.name in launches
        ),
        instructions=(
            *(_renamed(i, name) for i in body),
            Return(tuple(Ref(r) for r in results)),
        ),
        facts=program.facts,
        origins=program.origins,
        user_kernels=tuple(k for k in program.user_kernels if k.key in users),
        capture=capture,
        home=None if capture.device.is_host else capture.device,
    )


def _renamed(instruction: Instruction, part: str) -> Instruction:
    """Return an instruction that launches the part's own kernels: no two programs share one."""
    match instruction:
        case Launch(kernel=kernel):
            return evolve(instruction, kernel=f"{part}_{kernel}")
        case WithDevice(body=body) | ProfileRange(body=body):
            return evolve(instruction, body=tuple(_renamed(i, part) for i in body))
    return instruction
