"""The order in which kernels and calls run."""

from collections.abc import Callable, Sequence
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
