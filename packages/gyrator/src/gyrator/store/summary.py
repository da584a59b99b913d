"""The manifest of a compiled graph, computed from its programs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from gyrator.engine.device_graphs import captured
from gyrator.reports.records import ExternRecord, KernelRecord, PartitionRecord
from gyrator.store.costs import buffer_bytes, call_bytes, call_flops, kernel_flops
from gyrator.store.lifetimes import storages
from gyrator.store.manifest import CompiledHost, ProgramManifest, StoredUserKernel
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.walk import launches, programs, user_kernels
from gyrator_ir.kernel.nodes import Kernel, Schedule, ScheduleNode
from gyrator_ir.loop.nodes import CollectiveCall, Extern
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Program, TranslationUnit
from gyrator_runtime.native import BuiltKernel


def summarise(
    gm: torch.fx.GraphModule,
    schedule: Schedule,
    host: HostProgram,
    units: Mapping[str, Sequence[TranslationUnit]],
    wrapper: Program,
    compiled: CompiledHost | None,
    verified: Mapping[str, str],
) -> ProgramManifest:
    """Return the manifest of a newly compiled graph.

    Args:
        gm: the ATen graph.
        schedule: its kernels and calls.
        host: its host program.
        units: the text of its kernels, by device type.
        wrapper: the text of the host program.
        compiled: the calling convention of a host program in C++.
        verified: the results of comparing kernels with their IR, by name.
    """
    launched = Counter(i.kernel for i in launches(host))
    return ProgramManifest(
        nodes=sum(node.op == "call_function" for node in gm.graph.nodes),
        launches=launched.total(),
        kernels=_kernels(schedule, host, units, verified, launched),
        externs=_externs(schedule),
        built=built_kernels(units),
        constants=wrapper.constants,
        language=wrapper.language,
        user_kernels=tuple(
            StoredUserKernel(k.key, k.source, k.parameters, k.settings) for k in user_kernels(host)
        ),
        compiled=compiled,
        partitions=_partitions(schedule),
        storages=storages(host),
        graph=captured(host),
        parts={p.name: c for p in host.subprograms if (c := captured(p)) is not None},
        home=None if host.home is None else host.home.index or 0,
    )


def _kernels(
    schedule: Schedule,
    host: HostProgram,
    units: Mapping[str, Sequence[TranslationUnit]],
    verified: Mapping[str, str],
    launches: Mapping[str, int],
) -> tuple[KernelRecord, ...]:
    texts = {
        k.kernel: (k.text, u.language) for part in units.values() for u in part for k in u.kernels
    }
    refusals = _refusals(schedule)
    return tuple(
        KernelRecord(
            name=k.name,
            language=texts[k.name][1],
            text=texts[k.name][0],
            nodes=_unique(part.origins[o].node for o in k.origins),
            ops=_unique(part.origins[o].target for o in k.origins),
            sources=_unique(_line(part.origins[o]) for o in k.origins),
            modules=_unique(part.origins[o].module for o in k.origins),
            bytes_moved=sum(buffer_bytes(b, part.facts) for b in k.parameters),
            flops=kernel_flops(k, part.facts),
            launches=launches[k.name],
            refusals=refusals.get(k.origins, ()),
            verified=verified.get(k.name, ""),
        )
        for part in programs(host)
        for k in part.kernels
    )


def _externs(schedule: Schedule) -> tuple[ExternRecord, ...]:
    return tuple(
        _extern(n, s)
        for s in (schedule, *schedule.subschedules)
        for n in s.nodes
        if isinstance(n, Extern)
    )


def _extern(call: Extern, schedule: Schedule) -> ExternRecord:
    origin = schedule.origins[call.origins[0]] if call.origins else Origin("", "")
    return ExternRecord(
        target=call.out or call.target,
        node=origin.node,
        reason=call.reason,
        source=_line(origin),
        module=origin.module,
        bytes_moved=call_bytes(call, schedule),
        flops=call_flops(call, schedule),
    )


def _partitions(schedule: Schedule) -> tuple[PartitionRecord, ...]:
    return tuple(
        PartitionRecord(
            nodes=tuple(map(_label, schedule.nodes[p.start : p.end])),
            device="" if p.device is None else str(p.device),
            reason=p.reason,
        )
        for p in schedule.partitions
    )


def _label(node: ScheduleNode) -> str:
    """Return the name of a node in a report: for a call, its op."""
    return node.target if isinstance(node, Extern | CollectiveCall) else node.name


def built_kernels(units: Mapping[str, Sequence[TranslationUnit]]) -> tuple[BuiltKernel, ...]:
    """Return the function and the checks of each kernel in the text of its unit."""
    return tuple(
        BuiltKernel(
            k.kernel,
            k.symbol,
            tuple((c.failure, c.message) for c in sorted(k.checks, key=lambda c: c.code)),
        )
        for part in units.values()
        for u in part
        for k in u.kernels
    )


def _refusals(schedule: Schedule) -> dict[tuple[int, ...], tuple[str, ...]]:
    return {
        n.origins: tuple(f"{r.other}: {r.reason}" for r in n.refusals)
        for n in schedule.nodes
        if isinstance(n, Kernel)
    }


def _line(origin: Origin) -> str:
    return f"{origin.location}: {origin.code}" if origin.location else ""


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(i for i in items if i))
