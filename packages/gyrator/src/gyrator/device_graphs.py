"""Which programs a device's graph can stand for, and running them so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gyrator_runtime.graphs import GraphReplay

if TYPE_CHECKING:
    from gyrator_ir.host.nodes import HostProgram
    from gyrator_ir.kernel.nodes import Schedule
    from gyrator_runtime.device import DeviceInterface


GraphDevices = Mapping[str, "Callable[[], DeviceInterface]"]
NO_GRAPHS: GraphDevices = MappingProxyType({})


def capturable(schedule: Schedule, host: HostProgram) -> dict[str, Any] | None:
    """Return what is stored about a program that can be captured whole, or None.

    Its sizes are constants, all it touches lies on one device, and nothing waits for the host.
    """
    from gyrator_ir.loop.nodes import TensorInput, TensorRef
    from gyrator_scheduler.memory import touched

    given = [i.buffer if isinstance(i, TensorInput) else None for i in schedule.inputs]
    buffers = [b for b in given if b is not None]
    buffers += [c.buffer for c in schedule.constants] + list(schedule.buffers)
    devices = {b.device for b in buffers}
    whole = all(p.capturable for p in schedule.partitions) and schedule.nodes
    sized = any(e.free_symbols for b in buffers for e in (*b.shape, *b.strides))
    plain = None not in given and all(isinstance(o, TensorRef) for o in schedule.outputs)
    if not whole or sized or not plain or len(devices) != 1 or host.subprograms:
        return None
    written = {name for node in schedule.nodes for name in touched(node)[1]}
    names = [b.name for b in given if b is not None]
    (device,) = devices
    mutated = [k for k, name in enumerate(names) if name in written]
    return {"device": device.type, "mutated": mutated}


def replayed(
    plan: Callable[[list[Any]], Any],
    facts: Mapping[str, Any] | None,
    devices: GraphDevices,
) -> Callable[[list[Any]], Any]:
    """Return a program that replays a graph, or the program itself where none can stand for it.

    Args:
        facts: what `capturable` gave.
        devices: interfaces by device type; empty where graphs are not wanted.
    """
    if facts is None or facts["device"] not in devices:
        return plan
    device = devices[facts["device"]]()
    if not device.supports_graphs():
        return plan
    return GraphReplay(plan, device, frozenset(facts["mutated"]))
