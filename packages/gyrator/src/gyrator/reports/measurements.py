"""Measurements for reports: the machine's limits, and the timeline of one call of a function."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from attrs import field
from torch._C._autograd import DeviceType
from torch.profiler import profile, record_function, supported_activities

from gyrator.reports.levels import Attribution
from gyrator.reports.records import GraphRecord
from gyrator_ir.define import define, frozen
from gyrator_ir.kernel.nodes import Kernel, Schedule, ScheduleNode
from gyrator_ir.loop.nodes import CollectiveCall, Extern, Template

_BYTES = 64 << 20
_ROWS = 1024
_TRIES = 5


@frozen
class Limits:
    """Measured peak rates of a device, per second."""

    device: str
    """The device type."""
    bytes: float
    """Memory bandwidth: bytes read and written by a copy that exceeds the caches."""
    flops: float
    """Floating-point operations in a product of square `float32` matrices."""


def measure_limits(records: Iterable[GraphRecord]) -> Limits:
    """Measure the device on which graphs allocate, the CPU if it is among several; takes half a
    second."""
    types = {torch.device(s.device).type for r in records for s in r.storages}
    default = torch.empty(0).device.type
    device = default if default in types or not types else min(types)
    source = torch.ones(_BYTES // 4, device=device)
    destination = torch.empty_like(source)
    a = torch.ones(_ROWS, _ROWS, device=device)
    return Limits(
        device,
        2 * _BYTES / _least(lambda: destination.copy_(source)),
        2 * _ROWS**3 / _least(lambda: a @ a),
    )


def _least(run: Callable[[], Any]) -> float:
    return min(elapsed(run) for _ in range(_TRIES))


def elapsed(run: Callable[[], Any]) -> float:
    """Return the seconds that a function takes, including its work on the accelerator."""
    _wait()
    start = time.perf_counter()
    run()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    """Synchronise with the accelerator, if there is one."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


# One call ---------------------------------------------------------------------------------------


@frozen
class Span:
    """A kernel or an op that ran during a call."""

    name: str
    """The name of a kernel of the host program, or an ATen op."""
    start: float
    """Seconds since the call began."""
    seconds: float
    graph: int | None = None
    """The index of its record; None for an op outside of all graphs."""
    node: str = ""
    """Its node in that graph's schedule."""
    lane: str = ""
    """The device that ran it; empty for the CPU."""
    kernel: bool = False
    """Whether it is a generated kernel rather than an ATen op."""

    @property
    def end(self) -> float:
        """Seconds since the call began."""
        return self.start + self.seconds


@frozen
class Timeline:
    """The timeline of one call of a function under PyTorch's profiler."""

    seconds: float
    """The duration of the call."""
    spans: tuple[Span, ...]
    """Ordered by start time. Spans of one lane do not overlap."""

    @property
    def rest(self) -> float:
        """Seconds in which the CPU ran none of the spans: Python, guards, allocation, and
        waiting for devices."""
        return self.seconds - sum(s.seconds for s in self.spans if not s.lane)


def timeline(call: Callable[[], Any], records: Sequence[GraphRecord], calls: int) -> Timeline:
    """Call a function repeatedly under PyTorch's profiler; return the timeline of the median call.

    Args:
        call: runs the graphs.
        records: the graphs, compiled with the option `profile`.
        calls: number of calls, after one that is not counted.
    """
    label = f"gyrator call {id(call)}"
    kinds = supported_activities()  # type: ignore[no-untyped-call]
    with profile(activities=kinds) as profiler:
        for _ in range(calls + 1):
            with record_function(label):
                call()
                _wait()
    events = [e for e in profiler.events() or () if e.time_range.elapsed_us() > 0]
    host = [e for e in events if e.device_type == DeviceType.CPU]
    calls_ = sorted((e for e in host if e.name == label), key=lambda e: e.time_range.start)[1:]
    median = sorted(calls_, key=lambda e: e.time_range.elapsed_us())[len(calls_) // 2]
    inside = [e for e in events if _within(e, median) and e.name != label]
    return read_events(median, inside, records)


def read_events(call: Any, events: Sequence[Any], records: Sequence[GraphRecord]) -> Timeline:
    """Build the timeline of a call from profiler events.

    Args:
        call: the profiler's event of the call.
        events: its events during the call.
        records: the graphs that ran.
    """
    locator = _Locator(tuple(map(_Graph.of, records)))
    attributions = tuple(map(Attribution.of, records))
    start, spans = call.time_range.start, []
    ordered = sorted(events, key=lambda e: (e.time_range.start, -e.time_range.end))
    ranges = [e for e in ordered if e.name in locator.names]
    # A range that contains another is a branch or a loop, and only its body counts.
    around = {id(e) for e, after in pairwise(ranges) if after.time_range.start < e.time_range.end}
    leaves = {id(e) for e in ranges} - around
    last: Any = None
    for e in ordered:
        at, seconds = (e.time_range.start - start) / 1e6, e.time_range.elapsed_us() / 1e6
        if e.device_type != DeviceType.CPU:
            spans.append(_on_device(e, at, seconds, records))
            continue
        if last is not None and e.time_range.start < last.time_range.end:
            continue  # a part of the last span
        if id(e) in leaves:
            graph, op = locator.find(e.name)
            label = op or attributions[graph].launched.get(e.name, e.name)
            spans.append(Span(label, at, seconds, graph, e.name, kernel=not op))
        elif e.name.startswith("aten::"):
            spans.append(Span(e.name, at, seconds))
        else:
            continue
        last = e
    return Timeline(call.time_range.elapsed_us() / 1e6, tuple(spans))


def _within(event: Any, call: Any) -> bool:
    return bool(call.time_range.start <= event.time_range.start < call.time_range.end)


def _on_device(e: Any, start: float, seconds: float, records: Sequence[GraphRecord]) -> Span:
    """Return the span of a kernel on a device; generated kernels are recognised by name."""
    lane = f"{e.device_type.name.lower()}:{e.device_index}"
    ours = [(k.name, n) for n, r in enumerate(records) for k in r.kernels if k.name in e.name]
    if not ours:
        return Span(e.name, start, seconds, lane=lane)
    name, graph = max(ours, key=lambda pair: len(pair[0]))
    return Span(name, start, seconds, graph, name, lane, kernel=True)


def _called(nodes: Iterable[ScheduleNode]) -> dict[str, str]:
    """Return the op of each kernel and call, by name; empty for a kernel."""
    ops: dict[str, str] = {}
    for n in nodes:
        match n:
            case Kernel() | Template():
                ops[n.name] = ""
            case Extern():
                ops[n.name] = n.out or n.target
            case CollectiveCall():
                ops[n.name] = n.target
    return ops


@frozen
class _Graph:
    """The kernels and calls of a graph, and those of its subprograms, which may run several
    times."""

    own: dict[str, str]
    inner: dict[str, str]

    @classmethod
    def of(cls, record: GraphRecord) -> "_Graph":
        schedule: Schedule | None = record.levels.get("kernel")
        if schedule is None:
            return cls({}, {})
        return cls(
            _called(schedule.nodes), _called(n for s in schedule.subschedules for n in s.nodes)
        )


@define
class _Locator:
    """Assigns ranges to graphs: graphs run one after another, and their node names may coincide."""

    graphs: tuple[_Graph, ...]
    ran: list[int] = field(factory=list)
    visited: set[str] = field(factory=set)
    """The nodes of the current graph that have run."""

    @property
    def names(self) -> frozenset[str]:
        """The names of all nodes."""
        return frozenset().union(*(g.own.keys() | g.inner.keys() for g in self.graphs))

    def find(self, name: str) -> tuple[int, str]:
        """Return the graph of the next range, and the op that it calls, if any."""
        if not self._continues(name):
            having = [n for n, g in enumerate(self.graphs) if name in g.own or name in g.inner]
            fresh = [n for n in having if n not in self.ran]
            self.ran.append((fresh or having)[0])
            self.visited = set()
        self.visited.add(name)
        graph = self.graphs[self.ran[-1]]
        return self.ran[-1], (graph.inner | graph.own)[name]

    def _continues(self, name: str) -> bool:
        """Return whether the range may belong to the current graph."""
        if not self.ran:
            return False
        last = self.graphs[self.ran[-1]]
        return name in last.inner or (name in last.own and name not in self.visited)
