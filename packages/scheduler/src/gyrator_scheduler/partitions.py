"""Stretches of a schedule that a device graph may capture."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from gyrator_ir.expr import Const
from gyrator_ir.kernel.nodes import Kernel, Partition, Schedule, ScheduleNode
from gyrator_ir.loop.nodes import (
    AssertCond,
    Buffer,
    Extern,
    Template,
    TensorInput,
    UserTritonKernel,
)
from gyrator_ir.target import Target
from gyrator_ir.types import Device
from gyrator_scheduler.access import access
from gyrator_scheduler.memory import touched


def obstacle(
    node: ScheduleNode, buffers: Mapping[str, Buffer], targets: Mapping[str, Target]
) -> str:
    """Return why a node can't be part of a device graph, or an empty text."""
    if not isinstance(node, (Kernel, Extern, Template, UserTritonKernel, AssertCond)):
        return f"{type(node).__name__} waits for the host or another process"
    if isinstance(node, AssertCond):
        return ""
    reads, writes = touched(node)
    devices = {buffers[name].device.type for name in (*reads, *writes) if name in buffers}
    for device in sorted(devices):
        target = targets.get(device)
        if target is None or not target.capabilities.graphs:
            return f"{device} has no device graphs"
    return ""


def partitions(
    nodes: Sequence[ScheduleNode], buffers: Mapping[str, Buffer], targets: Mapping[str, Target]
) -> tuple[Partition, ...]:
    """Cut a schedule into the longest stretches that can, or can't for one reason, be captured."""
    result: list[Partition] = []
    for n, node in enumerate(nodes):
        why = obstacle(node, buffers, targets)
        if result and result[-1].reason == why:
            result[-1] = Partition(result[-1].start, n + 1, not why, why)
        else:
            result.append(Partition(n, n + 1, not why, why))
    return tuple(result)


LEAST = 2
"""Nodes that a stretch must have for a graph to save anything."""


def graph_device(
    node: ScheduleNode,
    buffers: Mapping[str, Buffer],
    targets: Mapping[str, Target],
    uncaptured: frozenset[str],
) -> Device | None:
    """Return the device whose graph may capture a node as it is: every size of it is constant.

    `uncaptured` has ops that no graph may hold, such as those that wait for their device.
    """
    if isinstance(node, AssertCond) or obstacle(node, buffers, targets):
        return None
    if isinstance(node, Extern) and node.target in uncaptured:
        return None
    sized = node.sizes if isinstance(node, Kernel) else (*_needs(node),)
    found = [buffers[name] for part in touched(node) for name in part if name in buffers]
    fixed = all(isinstance(e, Const) for b in found for e in (*b.shape, *b.strides))
    devices = {b.device for b in found}
    return devices.pop() if fixed and not sized and len(devices) == 1 else None


def _needs(node: ScheduleNode) -> tuple[object, ...]:
    found = access(node, {})  # type: ignore[arg-type]  # no kernel
    return (*found.needs, *found.defines)


def buffers_of(schedule: Schedule) -> dict[str, Buffer]:
    """Return all tensors of a schedule by name: given, constant and created ones."""
    given = [i.buffer for i in schedule.inputs if isinstance(i, TensorInput)]
    constants = [c.buffer for c in schedule.constants]
    return {b.name: b for b in (*given, *constants, *schedule.buffers)}


def captured_ranges(
    schedule: Schedule, targets: Mapping[str, Target], uncaptured: frozenset[str]
) -> list[tuple[int, int]]:
    """Return the ranges of nodes that a graph is worth while for: each on one device."""
    buffers = buffers_of(schedule)
    devices = (graph_device(n, buffers, targets, uncaptured) for n in schedule.nodes)
    result: list[tuple[int, int]] = []
    at = 0
    for device, group in groupby(devices):
        count = len(list(group))
        if device is not None and count >= LEAST:
            result.append((at, at + count))
        at += count
    return result
