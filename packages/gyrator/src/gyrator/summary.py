"""What a compiled graph consists of, as JSON data that is stored beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gyrator_ir.host.nodes import HostProgram, Launch
from gyrator_ir.host.walk import programs, walk
from gyrator_ir.kernel.nodes import Kernel, Launchable, Schedule, ScheduleNode
from gyrator_ir.loop.nodes import Buffer, CollectiveCall, Extern
from gyrator_ir.provenance import Origin
from gyrator_ir.source import TranslationUnit


def summarise(
    gm: torch.fx.GraphModule,
    schedule: Schedule,
    host: HostProgram,
    units: Mapping[str, Sequence[TranslationUnit]],
) -> dict[str, Any]:
    """Return the summary of a fresh compile."""
    texts = {
        k.kernel: (k.text, u.language) for part in units.values() for u in part for k in u.kernels
    }
    refusals = _refusals(schedule)
    kernels = [
        {
            "name": k.name,
            "language": texts[k.name][1],
            "text": texts[k.name][0],
            "nodes": _unique(part.origins[o].node for o in k.origins),
            "ops": _unique(part.origins[o].target for o in k.origins),
            "sources": _unique(_line(part.origins[o]) for o in k.origins),
            "bytes_moved": _bytes(k, part),
            "refusals": refusals.get(k.origins, []),
        }
        for part in programs(host)
        for k in part.kernels
    ]
    externs = [
        {
            "target": n.out or n.target,
            "node": s.origins[n.origins[0]].node if n.origins else "",
            "reason": n.reason,
            "source": _line(s.origins[n.origins[0]]) if n.origins else "",
        }
        for s in (schedule, *schedule.subschedules)
        for n in s.nodes
        if isinstance(n, Extern)
    ]
    launches = sum(isinstance(i, Launch) for p in programs(host) for i in walk(p.instructions))
    calls = sum(node.op == "call_function" for node in gm.graph.nodes)
    partitions = [
        {
            "nodes": [_named(n) for n in schedule.nodes[p.start : p.end]],
            "device": "" if p.device is None else str(p.device),
            "reason": p.reason,
        }
        for p in schedule.partitions
    ]
    return {
        "nodes": calls,
        "launches": launches,
        "kernels": kernels,
        "externs": externs,
        "partitions": partitions,
    }


def _named(node: ScheduleNode) -> str:
    """Return what a node is called in a report: a call by its op."""
    return node.target if isinstance(node, Extern | CollectiveCall) else node.name


def _refusals(schedule: Schedule) -> dict[tuple[int, ...], list[str]]:
    return {
        n.origins: [f"{r.other}: {r.reason}" for r in n.refusals]
        for n in schedule.nodes
        if isinstance(n, Kernel)
    }


def _line(origin: Origin) -> str:
    return f"{origin.location}: {origin.code}" if origin.location else ""


def _unique(items: Any) -> list[str]:
    return list(dict.fromkeys(i for i in items if i))


def _bytes(kernel: Launchable, host: HostProgram) -> int:
    return sum(_buffer_bytes(b, host) for b in kernel.parameters)


def _buffer_bytes(buffer: Buffer, host: HostProgram) -> int:
    total = buffer.dtype.size
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        extent = host.facts.hint(size)
        if host.facts.hint(stride) != 0:
            total *= extent if extent is not None else 1
    return total
