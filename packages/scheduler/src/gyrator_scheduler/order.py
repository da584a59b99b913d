"""The order in which kernels and calls run."""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from gyrator_scheduler.fusion.cluster import Cluster


def ordered(clusters: Sequence[Cluster], key: Callable[[Cluster], int]) -> list[Cluster]:
    """Return clusters so that each comes after what it needs; of those that could come next, the
    one with the least key."""
    by_id = {c.id: c for c in clusters}
    waiting = {c.id: len(c.before) for c in clusters}
    ready = [(key(c), c.id) for c in clusters if not c.before]
    heapify(ready)
    result: list[Cluster] = []
    while ready:
        c = by_id[heappop(ready)[1]]
        result.append(c)
        for a in c.after:
            waiting[a] -= 1
            if waiting[a] == 0:
                heappush(ready, (key(by_id[a]), a))
    return result


def first_member(c: Cluster) -> int:
    """Key that keeps program order by the first operation of each cluster: results come early."""
    return c.first


def last_member(c: Cluster) -> int:
    """Key that keeps program order by the last operation of each cluster: results come late."""
    return max((m.index for m in c.members), default=c.id)


def backwards(clusters: Sequence[Cluster]) -> list[Cluster]:
    """Return clusters in an order found from the end: each as late as what needs it allows, those
    with the last operations last. Buffers come to life shortly before they are used."""
    by_id = {c.id: c for c in clusters}
    waiting = {c.id: len(c.after) for c in clusters}
    ready = [(-last_member(c), c.id) for c in clusters if not c.after]
    heapify(ready)
    result: list[Cluster] = []
    while ready:
        c = by_id[heappop(ready)[1]]
        result.append(c)
        for b in c.before:
            waiting[b] -= 1
            if waiting[b] == 0:
                heappush(ready, (-last_member(by_id[b]), b))
    result.reverse()
    return result


def gathered(clusters: Sequence[Cluster], kind: Mapping[int, object]) -> list[Cluster]:
    """Return clusters, given in a valid order, in a valid order with few changes of their kind.

    Of those that could come next, the first one of the present kind does, else the first one.
    """
    by_id = {c.id: c for c in clusters}
    place = {c.id: n for n, c in enumerate(clusters)}
    waiting = {c.id: len(c.before) for c in clusters}
    ready: dict[object, list[tuple[int, int]]] = {}
    for c in clusters:
        if waiting[c.id] == 0:
            heappush(ready.setdefault(kind[c.id], []), (place[c.id], c.id))
    result: list[Cluster] = []
    present: object = None
    while len(result) < len(clusters):
        if not ready.get(present):
            present = min((queue[0], key) for key, queue in ready.items() if queue)[1]
        c = by_id[heappop(ready[present])[1]]
        result.append(c)
        for a in c.after:
            waiting[a] -= 1
            if waiting[a] == 0:
                heappush(ready.setdefault(kind[a], []), (place[a], a))
    return result
