"""Programs that replay a device's graph, as the plan of the host program says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gyrator_runtime.graphs import GraphMemory, GraphReplay

if TYPE_CHECKING:
    from gyrator_ir.host.nodes import HostProgram
    from gyrator_runtime.device import DeviceInterface


GraphDevices = Mapping[str, "Callable[[], DeviceInterface]"]
NO_GRAPHS: GraphDevices = MappingProxyType({})


def stored(host: HostProgram) -> dict[str, Any]:
    """Return what is stored about graphs that may stand for a host program.

    `graph` is about the whole program, `parts` about its partitions by name, `home` is the number
    of the device that is current while it runs, None for the host's.
    """
    return {
        "graph": _row(host),
        "parts": {p.name: _row(p) for p in host.subprograms if p.capture is not None},
        "home": None if host.home is None else host.home.index or 0,
    }


def _row(program: HostProgram) -> dict[str, Any] | None:
    if program.capture is None:
        return None
    device = program.capture.device
    mutated = list(program.capture.mutated)
    return {"device": device.type, "index": device.index or 0, "mutated": mutated}


def replayed(
    plan: Callable[[list[Any]], Any],
    facts: Mapping[str, Any] | None,
    devices: GraphDevices,
    memory: GraphMemory,
) -> Callable[[list[Any]], Any]:
    """Return a program that replays a graph, or the program itself where none can stand for it.

    Args:
        facts: what `stored` gave for the program.
        devices: interfaces by device type; empty where graphs are not wanted.
        memory: what the graphs share.
    """
    if facts is None or facts["device"] not in devices:
        return plan
    device = devices[facts["device"]]()
    if not device.supports_graphs():
        return plan
    return GraphReplay(plan, device, frozenset(facts["mutated"]), facts["index"], memory)
