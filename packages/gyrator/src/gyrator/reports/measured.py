"""What a report measures: the machine's limits, and what runs when in one call of a function."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from attrs import define, field, frozen
from torch._C._autograd import DeviceType
from torch.profiler import profile, record_function, supported_activities

from gyrator.reports.levels import Made
from gyrator.reports.records import GraphRecord
from gyrator_ir.kernel.nodes import Kernel, Schedule, ScheduleNode
from gyrator_ir.loop.nodes import CollectiveCall, Extern, Template

_BYTES = 64 << 20
_ROWS = 1024
_TRIES = 5


@frozen
class Limits:
    """What a device was seen to do in a second."""

    device: str
    """Its type."""
    bytes: float
    """Of memory, read and written by a copy that fits no cache."""
    flops: float
    """Of a product of square `float32` matrices."""


def measure_limits(records: Iterable[GraphRecord]) -> Limits:
    """Measure the device on which graphs allocate, the host where it is among several: for half a
    second."""
    types = {torch.device(s.device).type for r in records for s in r.storages}
    here = torch.empty(0).device.type
    device = here if here in types or not types else min(types)
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
    """Return the seconds until a function has run, also on the accelerator."""
    _wait()
    start = time.perf_counter()
    run()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    """Let the accelerator finish, if there is one."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


# One call ---------------------------------------------------------------------------------------


@frozen
class Span:
    """Something that ran during a call."""

    name: str
    """A kernel of the host program, or an op of ATen."""
    start: float
    """Seconds since the call began."""
    seconds: float
    graph: int | None = None
    """Which of the records it belongs to; None for an op outside of all graphs."""
    node: str = ""
    """Its node of that graph's schedule."""
    lane: str = ""
    """The device whose time it is; empty for the host's."""
    kernel: bool = False
    """Whether it is a generated kernel, and no op of ATen."""

    @property
    def end(self) -> float:
        """Seconds since the call began."""
        return self.start + self.seconds


@frozen
class Timeline:
    """What ran when in one call of a function, under PyTorch's profiler."""

    seconds: float
    """Of the call."""
    spans: tuple[Span, ...]
    """In the order in which they began. Those of one lane do not overlap."""

    @property
    def rest(self) -> float:
        """Seconds of the call in which the host ran none of them: Python, guards, allocation, and
        waiting for devices."""
        return self.seconds - sum(s.seconds for s in self.spans if not s.lane)


def timeline(call: Callable[[], Any], records: Sequence[GraphRecord], calls: int) -> Timeline:
    """Call a function so often under PyTorch's profiler; return what ran in the median call.

    Args:
        call: runs the graphs.
        records: the graphs, compiled with the option `profile`.
        calls: how often, after one call that is not counted.
    """
    label = f"gyrator call {id(call)}"
    kinds = supported_activities()  # type: ignore[no-untyped-call]
    with profile(activities=kinds) as found:
        for _ in range(calls + 1):
            with record_function(label):
                call()
                _wait()
    events = [e for e in found.events() or () if e.time_range.elapsed_us() > 0]
    host = [e for e in events if e.device_type == DeviceType.CPU]
    wholes = sorted((e for e in host if e.name == label), key=lambda e: e.time_range.start)[1:]
    whole = sorted(wholes, key=lambda e: e.time_range.elapsed_us())[len(wholes) // 2]
    inside = [e for e in events if _within(e, whole) and e.name != label]
    return read_events(whole, inside, records)


def read_events(whole: Any, events: Sequence[Any], records: Sequence[GraphRecord]) -> Timeline:
    """Return what ran in a call.

    Args:
        whole: the profiler's event of the call.
        events: its events during the call.
        records: the graphs that ran.
    """
    places = _Places(tuple(map(_Graph.of, records)))
    made = tuple(map(Made.of, records))
    start, spans = whole.time_range.start, []
    ordered = sorted(events, key=lambda e: (e.time_range.start, -e.time_range.end))
    ranges = [e for e in ordered if e.name in places.names]
    # What has another inside is a branch or a loop, whose body is what runs.
    around = {id(e) for e, after in pairwise(ranges) if after.time_range.start < e.time_range.end}
    known = {id(e) for e in ranges} - around
    taken: Any = None
    for e in ordered:
        at, seconds = (e.time_range.start - start) / 1e6, e.time_range.elapsed_us() / 1e6
        if e.device_type != DeviceType.CPU:
            spans.append(_on_device(e, at, seconds, records))
            continue
        if taken is not None and e.time_range.start < taken.time_range.end:
            continue  # a part of what was taken
        if id(e) in known:
            graph, what = places.find(e.name)
            label = what or made[graph].launched.get(e.name, e.name)
            spans.append(Span(label, at, seconds, graph, e.name, kernel=not what))
        elif e.name.startswith("aten::"):
            spans.append(Span(e.name, at, seconds))
        else:
            continue
        taken = e
    return Timeline(whole.time_range.elapsed_us() / 1e6, tuple(spans))


def _within(event: Any, whole: Any) -> bool:
    return bool(whole.time_range.start <= event.time_range.start < whole.time_range.end)


def _on_device(e: Any, start: float, seconds: float, records: Sequence[GraphRecord]) -> Span:
    """Return the span of a kernel that a device ran: ours by what its name contains."""
    lane = f"{e.device_type.name.lower()}:{e.device_index}"
    ours = [(k.name, n) for n, r in enumerate(records) for k in r.kernels if k.name in e.name]
    if not ours:
        return Span(e.name, start, seconds, lane=lane)
    name, graph = max(ours, key=lambda pair: len(pair[0]))
    return Span(name, start, seconds, graph, name, lane, kernel=True)


def _called(nodes: Iterable[ScheduleNode]) -> dict[str, str]:
    """Return kernels and calls by name, with the op that each calls; none for a kernel."""
    found: dict[str, str] = {}
    for n in nodes:
        match n:
            case Kernel() | Template():
                found[n.name] = ""
            case Extern():
                found[n.name] = n.out or n.target
            case CollectiveCall():
                found[n.name] = n.target
    return found


@frozen
class _Graph:
    """The kernels and calls of a graph: its own, and those of its subprograms, which may run
    several times."""

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
class _Places:
    """Finds to which graph a range belongs: graphs run one after another, and name nodes alike."""

    graphs: tuple[_Graph, ...]
    ran: list[int] = field(factory=list)
    seen: set[str] = field(factory=set)
    """The nodes of the last graph that have run."""

    @property
    def names(self) -> frozenset[str]:
        """All nodes."""
        return frozenset().union(*(g.own.keys() | g.inner.keys() for g in self.graphs))

    def find(self, name: str) -> tuple[int, str]:
        """Return the graph of the range that comes next, and the op that it calls, if any."""
        if not self._goes_on(name):
            having = [n for n, g in enumerate(self.graphs) if name in g.own or name in g.inner]
            fresh = [n for n in having if n not in self.ran]
            self.ran.append((fresh or having)[0])
            self.seen = set()
        self.seen.add(name)
        graph = self.graphs[self.ran[-1]]
        return self.ran[-1], (graph.inner | graph.own)[name]

    def _goes_on(self, name: str) -> bool:
        """Whether the last graph may be that of the range."""
        if not self.ran:
            return False
        last = self.graphs[self.ran[-1]]
        return name in last.inner or (name in last.own and name not in self.seen)
