"""Programs that replay device graphs, as the plan of the host program specifies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gyrator.store.manifest import Captured
from gyrator_runtime.graphs import GraphMemory, GraphReplay

if TYPE_CHECKING:
    from gyrator_ir.host.nodes import HostProgram
    from gyrator_runtime.device import DeviceInterface


GraphDevices = Mapping[str, "Callable[[], DeviceInterface]"]
NO_GRAPHS: GraphDevices = MappingProxyType({})


def captured(program: HostProgram) -> Captured | None:
    """Return the stored facts about the graph capture of a program; None if it cannot be
    captured."""
    if program.capture is None:
        return None
    device = program.capture.device
    return Captured(device.type, device.index or 0, program.capture.mutated)


def replayed(
    plan: Callable[[list[Any]], Any],
    facts: Captured | None,
    devices: GraphDevices,
    memory: GraphMemory,
) -> Callable[[list[Any]], Any]:
    """Return a program that replays a device graph, or the program itself if it cannot be captured.

    Args:
        facts: the result of `captured` for the program.
        devices: interfaces by device type; empty if device graphs are disabled.
        memory: the memory that the graphs share.
    """
    if facts is None or facts.device not in devices:
        return plan
    device = devices[facts.device]()
    if not device.supports_graphs():
        return plan
    return GraphReplay(plan, device, frozenset(facts.mutated), facts.index, memory)
