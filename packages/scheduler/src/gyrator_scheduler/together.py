"""Which kernels one launch runs: small ones that need not wait for one another."""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence

from attrs import define, evolve, field

from gyrator_ir.kernel.nodes import Lifetime, Together
from gyrator_scheduler.fusion.cluster import Cluster

REACH = 64
"""A kernel moves ahead of at most so many launches."""


@define(eq=False)
class _Launch:
    members: list[Cluster] = field(factory=list)
    tensors: int = 0


@define(eq=False)
class _Open:
    """Launches of one kind that more kernels may join, in order."""

    places: list[int] = field(factory=list)


def launches(
    order: Sequence[Cluster],
    clusters: Sequence[Cluster],
    kind: Callable[[Cluster], Hashable | None],
    tensors: Mapping[int, int],
    limit: Callable[[Cluster], int],
) -> list[list[Cluster]]:
    """Return the clusters of `order`, a right order of some of `clusters`, as launches in an order.

    Each joins the first launch of its kind, None for those that stay alone, that comes after all
    that it waits for and does not pass more than `limit` tensors; `tensors` has their numbers.
    """
    by_id = {c.id: c for c in clusters}
    made: list[_Launch] = []
    after: dict[int, int] = {}
    open_: dict[Hashable, _Open] = {}

    def earliest(c: Cluster) -> int:
        """Return the place of the first launch after all that a cluster waits for."""
        found = 0
        for b in c.before:
            if b not in after:  # no kernel came of it
                after[b] = earliest(by_id[b])
            found = max(found, after[b])
        return found

    for c in order:
        key = kind(c)
        first = earliest(c)
        place = len(made)
        if key is not None:
            queue = open_.setdefault(key, _Open())
            room = limit(c) - tensors[c.id]
            start = bisect_left(queue.places, max(first, len(made) - REACH))
            place = next((n for n in queue.places[start:] if made[n].tensors <= room), place)
            if place == len(made):
                queue.places.append(place)
        if place == len(made):
            made.append(_Launch())
        made[place].members.append(c)
        made[place].tensors += tensors.get(c.id, 0)
        after[c.id] = place + 1
    return [launch.members for launch in made]


def ranges(groups: Sequence[Sequence[Cluster]]) -> tuple[Together, ...]:
    """Return where launches of several kernels lie among their nodes."""
    found: list[Together] = []
    at = 0
    for group in groups:
        if len(group) > 1:
            found.append(Together(at, at + len(group)))
        at += len(group)
    return tuple(found)


def step_of(together: Sequence[Together], count: int) -> list[tuple[int, int]]:
    """Return for each of `count` nodes, and the end, the first and the last that it runs with."""
    found = [(n, n) for n in range(count + 1)]
    for t in together:
        found[t.start : t.end] = [(t.start, t.end - 1)] * (t.end - t.start)
    return found


def widened(
    lives: Sequence[Lifetime], together: Sequence[Together], count: int
) -> tuple[Lifetime, ...]:
    """Return lives that last for the whole of each launch that they touch."""
    if not together:
        return tuple(lives)
    steps = step_of(together, count)
    return tuple(evolve(x, first=steps[x.first][0], last=steps[x.last][1]) for x in lives)
