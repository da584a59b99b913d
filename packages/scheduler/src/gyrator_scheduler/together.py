"""Grouping of small independent kernels into one launch."""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence

from attrs import define, evolve, field

from gyrator_ir.kernel.nodes import Lifetime, Together
from gyrator_scheduler.fusion.cluster import Cluster

MAX_MOVE = 64
"""Maximum number of launches that a kernel is moved ahead of."""


@define(eq=False)
class _Launch:
    members: list[Cluster] = field(factory=list)
    tensors: int = 0


def launches(
    order: Sequence[Cluster],
    clusters: Sequence[Cluster],
    kind: Callable[[Cluster], Hashable | None],
    tensors: Mapping[int, int],
    limit: Callable[[Cluster], int],
) -> list[list[Cluster]]:
    """Return the clusters of `order`, a topological order of a subset of `clusters`, grouped into
    launches in execution order.

    A cluster joins the first launch of its `kind` that runs after all of its predecessors and still
    passes at most `limit` tensors; clusters of kind None are launched alone. `tensors` maps
    clusters to their numbers of tensors.
    """
    by_id = {c.id: c for c in clusters}
    result: list[_Launch] = []
    after: dict[int, int] = {}
    open_: dict[Hashable, list[int]] = {}  # positions of launches by kind, in ascending order

    def earliest(c: Cluster) -> int:
        """Return the position of the first launch that may run a cluster."""
        position = 0
        for b in c.before:
            if b not in after:  # the predecessor produced no kernel
                after[b] = earliest(by_id[b])
            position = max(position, after[b])
        return position

    for c in order:
        key = kind(c)
        first = earliest(c)
        position = len(result)
        if key is not None:
            positions = open_.setdefault(key, [])
            room = limit(c) - tensors[c.id]
            start = bisect_left(positions, max(first, len(result) - MAX_MOVE))
            position = next((n for n in positions[start:] if result[n].tensors <= room), position)
            if position == len(result):
                positions.append(position)
        if position == len(result):
            result.append(_Launch())
        result[position].members.append(c)
        result[position].tensors += tensors.get(c.id, 0)
        after[c.id] = position + 1
    return [launch.members for launch in result]


def ranges(groups: Sequence[Sequence[Cluster]]) -> tuple[Together, ...]:
    """Return the node ranges of the launches that run several kernels."""
    result: list[Together] = []
    at = 0
    for group in groups:
        if len(group) > 1:
            result.append(Together(at, at + len(group)))
        at += len(group)
    return tuple(result)


def step_of(together: Sequence[Together], count: int) -> list[tuple[int, int]]:
    """Return, for each of `count` nodes and the end, the first and last node of its launch."""
    result = [(n, n) for n in range(count + 1)]
    for t in together:
        result[t.start : t.end] = [(t.start, t.end - 1)] * (t.end - t.start)
    return result


def widened(
    lives: Sequence[Lifetime], together: Sequence[Together], count: int
) -> tuple[Lifetime, ...]:
    """Return lifetimes extended to cover every launch that they overlap."""
    if not together:
        return tuple(lives)
    steps = step_of(together, count)
    return tuple(evolve(x, first=steps[x.first][0], last=steps[x.last][1]) for x in lives)
