"""Partitions of a schedule that device graphs capture, and why other nodes are not captured.

`build` determines the device whose graph can capture each node (`fits`), groups nodes by device,
and records the partitions in `Schedule.partitions`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from attrs import evolve

from gyrator_ir.define import frozen
from gyrator_ir.expr import Const
from gyrator_ir.kernel.nodes import Kernel, Lifetime, Partition, Schedule, ScheduleNode
from gyrator_ir.loop.capture import uncaptured
from gyrator_ir.loop.nodes import Buffer, Literal, TensorInput, TensorRef
from gyrator_ir.loop.uses import arguments_of, defined_symbols, exprs_in
from gyrator_ir.target import Target
from gyrator_ir.types import Device
from gyrator_scheduler.memory import touched
from gyrator_scheduler.options import SchedulerOptions

LEAST = 2
"""Minimum number of nodes for which capturing part of a program saves time."""


@frozen
class Fit:
    """The device whose graph can capture a node, or the reason why none can."""

    device: Device | None
    reason: str = ""


def fits(
    nodes: Iterable[ScheduleNode],
    buffers: Mapping[str, Buffer],
    targets: Mapping[str, Target],
    options: SchedulerOptions,
) -> Iterator[Fit]:
    """Yield, for each node, the device whose graph can capture it."""
    for node in nodes:
        if options.nan_asserts:
            yield Fit(None, "the host checks results for NaN")
        else:
            yield _fit(node, buffers, targets)


def _fit(node: ScheduleNode, buffers: Mapping[str, Buffer], targets: Mapping[str, Target]) -> Fit:
    if not isinstance(node, Kernel) and (why := uncaptured(node)):
        return Fit(None, why)
    touched_buffers = [buffers[name] for part in touched(node) for name in part if name in buffers]
    devices = sorted({b.device for b in touched_buffers}, key=str)
    for device in devices:
        target = targets.get(device.type)
        if target is None or not target.capabilities.graphs:
            return Fit(None, f"{device.type} has no device graphs")
    if len(devices) != 1:
        names = " and ".join(map(str, devices))
        return Fit(None, f"its tensors are on {names}" if names else "it touches no tensor")
    if _has_symbols(node) or not all(map(_is_fixed, touched_buffers)):
        return Fit(None, "its sizes change from call to call")
    return Fit(devices[0])


def _has_symbols(node: ScheduleNode) -> bool:
    if isinstance(node, Kernel):
        return bool(node.sizes)
    return any(e.free_symbols for e in exprs_in(arguments_of(node))) or bool(defined_symbols(node))


def _is_fixed(buffer: Buffer) -> bool:
    return all(isinstance(e, Const) for e in (*buffer.shape, *buffer.strides))


def planned(schedule: Schedule, fits_of_nodes: Sequence[Fit], parts: bool) -> Schedule:
    """Return the schedule with its partitions. `fits_of_nodes` has one `Fit` for each node.

    Without `parts`, graphs capture only whole programs. Storage is not reused across the boundary
    of a graph, because a graph's results are in its own memory.
    """
    spans: list[tuple[int, int, Fit]] = []
    for fit, group in groupby(fits_of_nodes):
        start = spans[-1][1] if spans else 0
        spans.append((start, start + len(list(group)), fit))
    covers_all = len(spans) == 1 and can_be_one_graph(schedule, spans[0][2].device)
    result: list[Partition] = []
    for start, end, fit in spans:
        device, reason = fit.device, fit.reason
        if device is not None and not covers_all:
            if not parts:
                device, reason = None, "this wrapper captures only whole programs"
            elif end - start < LEAST:
                device, reason = None, "a graph of one kernel or call saves nothing"
        if result and device is None and (result[-1].device, result[-1].reason) == (None, reason):
            start = result.pop().start
        result.append(Partition(start, end, device, reason))
    partitioned = evolve(schedule, partitions=tuple(result))
    return evolve(
        partitioned, lifetimes=_without_crossing_reuse(partitioned.lifetimes, captured(partitioned))
    )


def can_be_one_graph(schedule: Schedule, device: Device | None) -> bool:
    """Return whether a graph of `device` that captures all nodes can replace the whole program: all
    inputs and outputs are tensors of that device, and there are no subprograms."""
    if device is None or schedule.subschedules:
        return False
    tensor_inputs = all(isinstance(i, TensorInput) for i in schedule.inputs)
    plain_outputs = all(isinstance(o, TensorRef | Literal) for o in schedule.outputs)
    buffers = schedule.all_buffers
    return (
        tensor_inputs
        and plain_outputs
        and all(b.device == device and _is_fixed(b) for b in buffers)
    )


def captured_device(schedule: Schedule) -> Device | None:
    """Return the device whose graph replaces the whole program, or None."""
    if len(schedule.partitions) != 1:
        return None
    (only,) = schedule.partitions
    return only.device if can_be_one_graph(schedule, only.device) else None


def captured(schedule: Schedule) -> tuple[Partition, ...]:
    """Return the partitions that are captured separately from the rest of the program."""
    if captured_device(schedule) is not None:
        return ()
    return tuple(p for p in schedule.partitions if p.device is not None)


def _without_crossing_reuse(
    lives: Sequence[Lifetime], parts: Sequence[Partition]
) -> tuple[Lifetime, ...]:
    """Return lifetimes without reuse of storage across the boundary of a graph."""
    home = {life.buffer: _part_of(life.first, parts) for life in lives}
    return tuple(
        evolve(life, reuses=None)
        if life.reuses is not None and home[life.buffer] != home.get(life.reuses, -1)
        else life
        for life in lives
    )


def _part_of(node: int, parts: Sequence[Partition]) -> int:
    return next((k for k, p in enumerate(parts) if p.start <= node < p.end), -1)


def home(schedule: Schedule) -> Device | None:
    """Return the device to make current while a program runs; None for host-only programs.

    If there are several, the first: kernels on the others are launched inside device guards.
    """
    devices = {b.device for b in schedule.all_buffers if not b.device.is_host}
    return min(devices, key=lambda d: (d.index or 0, d.type), default=None)
