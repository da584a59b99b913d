"""Outlining of host program regions into subprograms that device graphs capture."""

from collections.abc import Sequence

from attrs import evolve

from gyrator_ir.define import frozen
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import bound, free_names, freed, walk
from gyrator_ir.types import Device
from gyrator_scheduler.naming import fresh


@frozen
class Region:
    """Instructions `start` to `end` (exclusive) that a graph of `device` captures."""

    start: int
    end: int
    device: Device
    written: frozenset[str]
    """Tensors that the instructions write."""


def partitioned(program: h.HostProgram, regions: Sequence[Region]) -> h.HostProgram:
    """Return the program with each region outlined into a subprogram that a graph can capture.

    The parameters of a subprogram are the tensors from outside that its region uses, and its
    results are the tensors that are used later. The caller frees the parameters. Views must not
    cross the boundary of a region.
    """
    out: list[h.Instruction] = []
    parts: list[h.HostProgram] = []
    position = 0
    instructions = program.instructions
    used_names = {p.name for p in program.subprograms}
    for region in regions:
        out += instructions[position : region.start]
        position = region.end
        inside = instructions[region.start : region.end]
        bound_inside = set(bound(inside))
        freed_inputs = [i for i in inside if isinstance(i, h.Free) and i.name not in bound_inside]
        body = tuple(i for i in inside if i not in freed_inputs)
        used_later = set(free_names(instructions[region.end :]))
        results = tuple(n for n in bound(body) if n in used_later and n not in freed(body))
        names = free_names(body)
        name = fresh(f"part{len(parts)}", used_names)
        mutated = tuple(k for k, n in enumerate(names) if n in region.written)
        capture = h.Capture(region.device, mutated)
        parts.append(_part(program, name, body, names, results, capture))
        out.append(h.CallPartition(name, tuple(h.Ref(n) for n in names), results))
        out += freed_inputs
    out += instructions[position:]
    used = {i.kernel for i in walk(out) if isinstance(i, h.Launch)}
    return evolve(
        program,
        instructions=tuple(out),
        kernels=tuple(k for k in program.kernels if k.name in used),
        subprograms=(*program.subprograms, *parts),
    )


def _part(
    program: h.HostProgram,
    name: str,
    body: tuple[h.Instruction, ...],
    parameters: tuple[str, ...],
    results: tuple[str, ...],
    capture: h.Capture,
) -> h.HostProgram:
    launches = {i.kernel for i in walk(body) if isinstance(i, h.Launch)}
    users = {i.kernel for i in walk(body) if isinstance(i, h.TritonLaunch)}
    return h.HostProgram(
        name=name,
        parameters=tuple(h.Parameter(p, "tensor") for p in parameters),
        constants=(),
        kernels=tuple(
            evolve(k, name=f"{name}_{k.name}") for k in program.kernels if k.name in launches
        ),
        instructions=(
            *(_renamed(i, name) for i in body),
            h.Return(tuple(h.Ref(r) for r in results)),
        ),
        facts=program.facts,
        origins=program.origins,
        user_kernels=tuple(k for k in program.user_kernels if k.key in users),
        capture=capture,
        home=None if capture.device.is_host else capture.device,
    )


def _renamed(instruction: h.Instruction, part: str) -> h.Instruction:
    """Return an instruction that launches the part's copies of kernels: no two programs share a
    kernel name."""
    match instruction:
        case h.Launch(kernel=kernel):
            return evolve(instruction, kernel=f"{part}_{kernel}")
        case h.WithDevice(body=body) | h.ProfileRange(body=body):
            return evolve(instruction, body=tuple(_renamed(i, part) for i in body))
    return instruction
