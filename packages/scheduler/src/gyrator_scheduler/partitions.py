"""Stretches of a schedule that a device graph may capture."""

from collections.abc import Mapping, Sequence

from gyrator_ir.kernel.nodes import Kernel, Partition, ScheduleNode
from gyrator_ir.loop.nodes import AssertCond, Buffer, Extern, Template, UserTritonKernel
from gyrator_ir.target import Target
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
