"""The order in which kernels and calls run."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from attrs import field

from gyrator_ir.define import define
from gyrator_scheduler.fusion.cluster import Cluster
from gyrator_scheduler.memory import Uses

FEW_READY = 8
"""Maximum number of clusters that `within` compares with the memory that is left, at each step."""


def ordered(clusters: Sequence[Cluster], key: Callable[[Cluster], int]) -> list[Cluster]:
    """Return the clusters in topological order, the ready cluster with the smallest key first."""
    return _topological(clusters, lambda c: c.before, lambda c: c.after, key)


def _topological(
    clusters: Sequence[Cluster],
    before: Callable[[Cluster], Collection[int]],
    after: Callable[[Cluster], Iterable[int]],
    key: Callable[[Cluster], int],
) -> list[Cluster]:
    """Sort clusters by Kahn's algorithm, along the edges `before` and `after`."""
    by_id = {c.id: c for c in clusters}
    waiting = {c.id: len(before(c)) for c in clusters}
    ready = [(key(c), c.id) for c in clusters if not waiting[c.id]]
    heapify(ready)
    result: list[Cluster] = []
    while ready:
        c = by_id[heappop(ready)[1]]
        result.append(c)
        for a in after(c):
            waiting[a] -= 1
            if waiting[a] == 0:
                heappush(ready, (key(by_id[a]), a))
    return result


def first_member(c: Cluster) -> int:
    """Return the program position of a cluster's first operation: schedules clusters early."""
    return c.first


def last_member(c: Cluster) -> int:
    """Return the program position of a cluster's last operation: schedules clusters late."""
    return max((m.index for m in c.members), default=c.id)


def backwards(clusters: Sequence[Cluster]) -> list[Cluster]:
    """Return the clusters in a topological order built from the end: among those whose users all
    come later, the last one of the program comes last."""
    latest = _topological(
        clusters, lambda c: c.after, lambda c: c.before, lambda c: -last_member(c)
    )
    return latest[::-1]


def sources_late(order: Sequence[Cluster]) -> list[Cluster]:
    """Return a topological order with each cluster that depends on no other, such as a weight's
    conversion, moved to just before the first that depends on it."""
    position = {c.id: n for n, c in enumerate(order)}
    moved: dict[int, list[Cluster]] = {}
    for c in order:
        if c.after and not c.before:
            moved.setdefault(min(position[a] for a in c.after), []).append(c)
    result: list[Cluster] = []
    for n, c in enumerate(order):
        result += moved.get(n, ())
        if c.before or not c.after:
            result.append(c)
    return result


@define(eq=False)
class _Memory:
    """What buffers occupy while clusters run one after another."""

    buffers: Mapping[int, Sequence[str]]
    """Those that each cluster uses."""
    sizes: Mapping[str, int]
    outputs: Collection[str]
    """Those that nothing frees."""
    living: set[str]
    shared: Mapping[int, Mapping[str, str]]
    """See `in_place`, by cluster."""
    bytes: int = field(init=False)
    waiting: dict[str, set[int]] = field(factory=dict, init=False)
    """The clusters that have yet to use each buffer."""

    def __attrs_post_init__(self) -> None:
        self.bytes = sum(self.sizes[name] for name in self.living)
        for n, names in self.buffers.items():
            for name in names:
                self.waiting.setdefault(name, set()).add(n)

    def created(self, cluster: int) -> int:
        """Return the bytes of the buffers that a cluster creates."""
        return sum(self.sizes[x] for x in self.buffers[cluster] if x not in self.living)

    def needed(self, cluster: int) -> int:
        """Return the bytes of storage that a cluster needs beside what is alive."""
        spared = (
            self.sizes[new]
            for new, old in self.shared.get(cluster, {}).items()
            if new not in self.living and len(self.waiting[old]) == 1 and old not in self.outputs
        )
        return self.created(cluster) - sum(spared)

    def growth(self, cluster: int) -> int:
        """Return by how many bytes more is occupied after a cluster than before."""
        names = (x for x in self.buffers[cluster] if x not in self.outputs)
        freed = sum(self.sizes[x] for x in names if len(self.waiting[x]) == 1)
        return self.created(cluster) - freed

    def run(self, cluster: int) -> list[int]:
        """Account for a cluster; return the clusters that are now the last to use a buffer."""
        self.bytes += self.growth(cluster)
        last: list[int] = []
        for name in self.buffers[cluster]:
            self.living.add(name)
            waiting = self.waiting[name]
            waiting.remove(cluster)
            if len(waiting) == 1 and name not in self.outputs:
                last += waiting
        return last


def within(
    clusters: Sequence[Cluster],
    bound: int,
    uses: Mapping[int, Uses],
    sizes: Mapping[str, int],
    outputs: Collection[str],
    living: Collection[str],
    shared: Mapping[int, Mapping[str, str]],
) -> list[Cluster]:
    """Return the clusters in a topological order that postpones those whose results do not fit in
    `bound` bytes beside what is alive, such as the gradients of large weights early in a backward
    pass.

    Among the ready clusters, the first of the program that fits is next; if none of the first
    `FEW_READY` does, the one after which the least is occupied.

    Args:
        clusters: in any order.
        bound: the bytes that should suffice.
        uses: the buffers that each cluster reads and writes.
        sizes: the bytes of the buffers that count.
        outputs: the buffers that live to the end.
        living: the buffers that live from the beginning.
        shared: see `in_place`, by cluster.
    """
    by_id = {c.id: c for c in clusters}
    waiting = {c.id: len(c.before) for c in clusters}
    touched = {n: [x for x in dict.fromkeys((*r, *w)) if x in sizes] for n, (r, w) in uses.items()}
    memory = _Memory(touched, sizes, outputs, set(living), shared)
    in_order: list[tuple[int, int]] = []
    by_growth: list[tuple[int, int, int]] = []
    unused = {c.id for c in clusters}

    def add(n: int) -> None:
        heappush(by_growth, (memory.growth(n), by_id[n].first, n))

    def ready(n: int) -> None:
        heappush(in_order, (by_id[n].first, n))
        add(n)

    def fitting() -> int | None:
        passed: list[tuple[int, int]] = []
        first: int | None = None
        while in_order and first is None and len(passed) < FEW_READY:
            entry = heappop(in_order)
            if entry[1] not in unused:
                continue
            passed.append(entry)
            if memory.bytes + memory.needed(entry[1]) <= bound:
                first = entry[1]
        for entry in passed:
            heappush(in_order, entry)
        return first

    def leanest() -> int:
        # If a cluster has several entries, the one that still holds is the smallest.
        while (n := heappop(by_growth)[2]) not in unused:
            pass
        return n

    for n, count in waiting.items():
        if not count:
            ready(n)
    result: list[Cluster] = []
    while unused:
        fits = fitting()
        chosen = leanest() if fits is None else fits
        unused.remove(chosen)
        result.append(by_id[chosen])
        for other in memory.run(chosen):
            if other in unused and not waiting[other]:
                add(other)
        for a in by_id[chosen].after:
            waiting[a] -= 1
            if not waiting[a]:
                ready(a)
    return result


def gathered(clusters: Sequence[Cluster], kind: Mapping[int, object]) -> list[Cluster]:
    """Return the clusters in a topological order with few changes of kind between neighbours.

    Among ready clusters, the first of the current kind is next; if there is none, the first of any
    kind. `clusters` must be in topological order.
    """
    by_id = {c.id: c for c in clusters}
    position = {c.id: n for n, c in enumerate(clusters)}
    waiting = {c.id: len(c.before) for c in clusters}
    ready: dict[object, list[tuple[int, int]]] = {}
    for c in clusters:
        if waiting[c.id] == 0:
            heappush(ready.setdefault(kind[c.id], []), (position[c.id], c.id))
    result: list[Cluster] = []
    current: object = None
    while len(result) < len(clusters):
        if not ready.get(current):
            current = min((queue[0], key) for key, queue in ready.items() if queue)[1]
        c = by_id[heappop(ready[current])[1]]
        result.append(c)
        for a in c.after:
            waiting[a] -= 1
            if waiting[a] == 0:
                heappush(ready.setdefault(kind[a], []), (position[a], a))
    return result
