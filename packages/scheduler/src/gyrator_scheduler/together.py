"""Grouping of small independent kernels into one launch."""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence

from attrs import evolve, field

from gyrator_ir.define import define, frozen
from gyrator_ir.kernel.nodes import Lifetime, Together
from gyrator_scheduler.fusion.cluster import Cluster

MAX_MOVE = 64
"""Maximum number of launches that a kernel is moved ahead of."""


@frozen
class Sharing:
    """What decides whether a cluster may share a launch."""

    device: Hashable
    """Only clusters on equal devices may share one."""
    kind: Hashable
    """Equal for identical kernels."""
    tensors: int
    max_tensors: int
    max_kinds: int
    """Maximum number of different kernels of the launch."""


@define(eq=False)
class _Launch:
    members: list[Cluster] = field(factory=list)
    kinds: set[Hashable] = field(factory=set)
    max_kinds: int = 1
    tensors: int = 0

    def admits(self, c: Sharing) -> bool:
        """Return whether a cluster may join the launch."""
        if self.tensors + c.tensors > c.max_tensors:
            return False
        return c.kind in self.kinds or len(self.kinds) < min(self.max_kinds, c.max_kinds)

    def add(self, c: Sharing) -> None:
        """Account for a cluster that joins the launch."""
        self.max_kinds = min(self.max_kinds, c.max_kinds) if self.kinds else c.max_kinds
        self.kinds.add(c.kind)
        self.tensors += c.tensors


def launches(
    order: Sequence[Cluster],
    clusters: Sequence[Cluster],
    sharing: Callable[[Cluster], Sharing | None],
) -> list[list[Cluster]]:
    """Return the clusters of `order`, a topological order of a subset of `clusters`, grouped into
    launches in execution order.

    A cluster joins the first launch on its device that runs after all of its predecessors and
    admits it; clusters without `sharing` are launched alone.
    """
    by_id = {c.id: c for c in clusters}
    result: list[_Launch] = []
    after: dict[int, int] = {}
    open_: dict[Hashable, list[int]] = {}  # positions of launches by device, in ascending order

    def earliest(c: Cluster) -> int:
        """Return the position of the first launch that may run a cluster."""
        position = 0
        for b in c.before:
            if b not in after:  # the predecessor produced no kernel
                after[b] = earliest(by_id[b])
            position = max(position, after[b])
        return position

    for c in order:
        own = sharing(c)
        first = earliest(c)
        position = len(result)
        if own is not None:
            positions = open_.setdefault(own.device, [])
            start = bisect_left(positions, max(first, len(result) - MAX_MOVE))
            position = next((n for n in positions[start:] if result[n].admits(own)), position)
            if position == len(result):
                positions.append(position)
        if position == len(result):
            result.append(_Launch())
        result[position].members.append(c)
        if own is not None:
            result[position].add(own)
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
    spans = [(steps[x.first][0], steps[x.last][1]) for x in lives]
    return tuple(
        x if (x.first, x.last) == (first, last) else evolve(x, first=first, last=last)
        for x, (first, last) in zip(lives, spans, strict=True)
    )
