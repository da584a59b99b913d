"""Which programs, or parts of them, a device's graph can stand for, and running them so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve

from gyrator_runtime.externs import overload
from gyrator_runtime.graphs import GraphMemory, GraphReplay

if TYPE_CHECKING:
    from gyrator_ir.host.nodes import HostProgram
    from gyrator_ir.kernel.nodes import Schedule
    from gyrator_ir.loop.nodes import LoopProgram
    from gyrator_ir.target import Target
    from gyrator_runtime.device import DeviceInterface
    from gyrator_scheduler.options import SchedulerOptions


GraphDevices = Mapping[str, "Callable[[], DeviceInterface]"]
NO_GRAPHS: GraphDevices = MappingProxyType({})
_UNSAFE = ("cudagraph_unsafe", "data_dependent_output", "dynamic_output_shape")
"""torch's tags of ops whose work, or result, no graph can hold."""


def uncaptured(program: LoopProgram) -> frozenset[str]:
    """Return the ops that a program and its subprograms call and no graph may hold."""
    from gyrator_ir.loop.nodes import Extern

    unsafe = {tag for name in _UNSAFE if (tag := getattr(torch.Tag, name, None)) is not None}
    targets = {o.target for o in program.operations if isinstance(o, Extern)}
    found = {t for t in targets if unsafe.intersection(getattr(overload(t), "tags", ()))}
    return frozenset(found).union(*map(uncaptured, program.subprograms))


def capturable(
    schedule: Schedule, host: HostProgram, unsafe: frozenset[str] = frozenset()
) -> dict[str, Any] | None:
    """Return what is stored about a program that can be captured whole, or None.

    Its sizes are constants, all it touches lies on one device, and nothing waits for the host, as
    the ops that are `unsafe` do.
    """
    from gyrator_ir.loop.nodes import Extern, Literal, TensorInput, TensorRef
    from gyrator_scheduler.memory import touched

    given = [i.buffer if isinstance(i, TensorInput) else None for i in schedule.inputs]
    buffers = [b for b in given if b is not None]
    buffers += [c.buffer for c in schedule.constants] + list(schedule.buffers)
    devices = {b.device for b in buffers}
    whole = all(p.capturable for p in schedule.partitions) and schedule.nodes
    unsafe_calls = any(isinstance(n, Extern) and n.target in unsafe for n in schedule.nodes)
    sized = any(e.free_symbols for b in buffers for e in (*b.shape, *b.strides))
    plain = None not in given and all(isinstance(o, TensorRef | Literal) for o in schedule.outputs)
    if not whole or unsafe_calls or sized or not plain or len(devices) != 1 or host.subprograms:
        return None
    written = {name for node in schedule.nodes for name in touched(node)[1]}
    names = [b.name for b in given if b is not None]
    (device,) = devices
    mutated = [k for k, name in enumerate(names) if name in written]
    return {"device": device.type, "index": device.index or 0, "mutated": mutated}


def parts(
    schedule: Schedule, host: HostProgram, targets: Mapping[str, Target], unsafe: frozenset[str]
) -> dict[str, dict[str, Any]]:
    """Return what is stored about each part of a program that can be captured."""
    from gyrator_ir.host.nodes import GraphCapture
    from gyrator_scheduler.memory import touched
    from gyrator_scheduler.partitions import buffers_of, captured_ranges, graph_device

    ranges = captured_ranges(schedule, targets, unsafe)
    programs = [p for p in host.subprograms if p.capture is GraphCapture.ALLOWED]
    found: dict[str, dict[str, Any]] = {}
    for program, (start, end) in zip(programs, ranges, strict=True):
        nodes = schedule.nodes[start:end]
        device = graph_device(nodes[0], buffers_of(schedule), targets, unsafe)
        written = {name for node in nodes for name in touched(node)[1]}
        names = [p.name for p in program.parameters]
        mutated = [k for k, name in enumerate(names) if name in written]
        assert device is not None
        row = {"device": device.type, "index": device.index or 0, "mutated": mutated}
        found[program.name] = row
    return found


def with_graphs(
    schedule: Schedule, options: SchedulerOptions, targets: Mapping[str, Target]
) -> tuple[HostProgram, dict[str, Any]]:
    """Return the host program, and what is stored about graphs that may stand for it.

    `graph` is about the whole program, `parts` about its partitions by name, `home` says which
    device is current while it runs.
    """
    from gyrator_scheduler.stage import plan_host

    host = plan_host(schedule, evolve(options, device_graphs=False), targets)
    whole = capturable(schedule, host, options.uncaptured)
    found: dict[str, dict[str, Any]] = {}
    if options.device_graphs and whole is None:
        host = plan_host(schedule, options, targets)
        found = parts(schedule, host, targets, options.uncaptured)
    return host, {"graph": whole, "parts": found, "home": home(schedule)}


def home(schedule: Schedule) -> int | None:
    """Return the number of the device to make current while a program runs; None for the host's.

    Of several, the first: kernels on the others are launched inside of guards.
    """
    from gyrator_scheduler.partitions import buffers_of

    devices = {b.device for b in buffers_of(schedule).values() if not b.device.is_host}
    return min((d.index or 0 for d in devices), default=None)


def replayed(
    plan: Callable[[list[Any]], Any],
    facts: Mapping[str, Any] | None,
    devices: GraphDevices,
    memory: GraphMemory,
) -> Callable[[list[Any]], Any]:
    """Return a program that replays a graph, or the program itself where none can stand for it.

    Args:
        facts: what `capturable` or `parts` gave.
        devices: interfaces by device type; empty where graphs are not wanted.
        memory: what the graphs share.
    """
    if facts is None or facts["device"] not in devices:
        return plan
    device = devices[facts["device"]]()
    if not device.supports_graphs():
        return plan
    return GraphReplay(plan, device, frozenset(facts["mutated"]), facts["index"], memory)
