"""The order in which kernels and calls run."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from gyrator_scheduler.fusion.cluster import Cluster


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
