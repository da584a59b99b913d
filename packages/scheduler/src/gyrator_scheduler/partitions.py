"""Stretches of a schedule that device graphs capture, and why the others stay outside.

`build` determines for every node whose graph can hold it (`fits`), brings those of one device
together, and plans the partitions once, into `Schedule.partitions`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from attrs import evolve, frozen

from gyrator_ir.expr import Const
from gyrator_ir.kernel.nodes import Kernel, Lifetime, Partition, Schedule, ScheduleNode
from gyrator_ir.loop.capture import uncaptured
from gyrator_ir.loop.nodes import Buffer, Literal, TensorInput, TensorRef
from gyrator_ir.target import Target
from gyrator_ir.types import Device
from gyrator_scheduler.access import arguments_of, defined_symbols, exprs_in
from gyrator_scheduler.memory import touched
from gyrator_scheduler.options import SchedulerOptions

LEAST = 2
"""Nodes that a part of a program must have for a graph to save anything."""


@frozen
class Fit:
    """The device whose graph can hold a node, or why none can."""

    device: Device | None
    reason: str = ""


def fits(
    nodes: Iterable[ScheduleNode],
    buffers: Mapping[str, Buffer],
    targets: Mapping[str, Target],
    options: SchedulerOptions,
) -> Iterator[Fit]:
    """Yield for each node which device's graph can hold it."""
    for node in nodes:
        if options.nan_asserts:
            yield Fit(None, "the host looks for NaN in what is computed")
        else:
            yield _fit(node, buffers, targets)


def _fit(node: ScheduleNode, buffers: Mapping[str, Buffer], targets: Mapping[str, Target]) -> Fit:
    if not isinstance(node, Kernel) and (why := uncaptured(node)):
        return Fit(None, why)
    found = [buffers[name] for part in touched(node) for name in part if name in buffers]
    devices = sorted({b.device for b in found}, key=str)
    for device in devices:
        target = targets.get(device.type)
        if target is None or not target.capabilities.graphs:
            return Fit(None, f"{device.type} has no device graphs")
    if len(devices) != 1:
        said = " and ".join(map(str, devices))
        return Fit(None, f"its tensors are on {said}" if said else "it touches no tensor")
    if _has_symbols(node) or not all(map(_is_fixed, found)):
        return Fit(None, "its sizes change from call to call")
    return Fit(devices[0])


def _has_symbols(node: ScheduleNode) -> bool:
    if isinstance(node, Kernel):
        return bool(node.sizes)
    return any(e.free_symbols for e in exprs_in(arguments_of(node))) or bool(defined_symbols(node))


def _is_fixed(buffer: Buffer) -> bool:
    return all(isinstance(e, Const) for e in (*buffer.shape, *buffer.strides))


def planned(schedule: Schedule, found: Sequence[Fit], parts: bool) -> Schedule:
    """Return a schedule with its partitions. `found` says for each node whose graph can hold it.

    Without `parts`, graphs capture whole programs alone. Storages do not cross the border of a
    graph, whose results are memory of its own.
    """
    spans: list[tuple[int, int, Fit]] = []
    for fit, group in groupby(found):
        start = spans[-1][1] if spans else 0
        spans.append((start, start + len(list(group)), fit))
    whole = len(spans) == 1 and stands_alone(schedule, spans[0][2].device)
    result: list[Partition] = []
    for start, end, fit in spans:
        device, reason = fit.device, fit.reason
        if device is not None and not whole:
            if not parts:
                device, reason = None, "host programs in this language are captured whole or not"
            elif end - start < LEAST:
                device, reason = None, "a graph of one kernel or call saves nothing"
        if result and device is None and (result[-1].device, result[-1].reason) == (None, reason):
            start = result.pop().start
        result.append(Partition(start, end, device, reason))
    made = evolve(schedule, partitions=tuple(result))
    return evolve(made, lifetimes=_kept_apart(made.lifetimes, captured(made)))


def stands_alone(schedule: Schedule, device: Device | None) -> bool:
    """Whether a graph of `device` that holds all nodes may stand for the program itself: tensors of
    that device alone come and go, and there is no other program."""
    if device is None or schedule.subschedules:
        return False
    given = all(isinstance(i, TensorInput) for i in schedule.inputs)
    returned = all(isinstance(o, TensorRef | Literal) for o in schedule.outputs)
    buffers = buffers_of(schedule).values()
    return given and returned and all(b.device == device and _is_fixed(b) for b in buffers)


def whole(schedule: Schedule) -> Device | None:
    """Return the device whose graph stands for the program itself; None where none does."""
    if len(schedule.partitions) != 1:
        return None
    (only,) = schedule.partitions
    return only.device if stands_alone(schedule, only.device) else None


def captured(schedule: Schedule) -> tuple[Partition, ...]:
    """Return the partitions that a graph captures apart from the rest of the program."""
    if whole(schedule) is not None:
        return ()
    return tuple(p for p in schedule.partitions if p.device is not None)


def _kept_apart(lives: Sequence[Lifetime], parts: Sequence[Partition]) -> tuple[Lifetime, ...]:
    """Return lives of which none takes over a storage across the border of a graph."""
    home = {life.buffer: _part_of(life.first, parts) for life in lives}
    return tuple(
        evolve(life, reuses=None)
        if life.reuses is not None and home[life.buffer] != home.get(life.reuses, -1)
        else life
        for life in lives
    )


def _part_of(node: int, parts: Sequence[Partition]) -> int:
    return next((k for k, p in enumerate(parts) if p.start <= node < p.end), -1)


def buffers_of(schedule: Schedule) -> dict[str, Buffer]:
    """Return all tensors of a schedule by name: given, constant and created ones."""
    given = [i.buffer for i in schedule.inputs if isinstance(i, TensorInput)]
    constants = [c.buffer for c in schedule.constants]
    return {b.name: b for b in (*given, *constants, *schedule.buffers)}


def home(schedule: Schedule) -> Device | None:
    """Return the device to make current while a program runs; None for the host's.

    Of several, the first: kernels on the others are launched inside of guards.
    """
    devices = {b.device for b in buffers_of(schedule).values() if not b.device.is_host}
    return min(devices, key=lambda d: (d.index or 0, d.type), default=None)
