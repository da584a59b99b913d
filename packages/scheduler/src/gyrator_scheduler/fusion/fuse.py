"""Greedy fusion: in program order, each operation is joined with neighbouring kernels."""

from collections.abc import Sequence

from gyrator_ir.deadline import NEVER, Deadline
from gyrator_ir.define import frozen
from gyrator_ir.loop.nodes import Operation
from gyrator_ir.target import Heuristics
from gyrator_scheduler.dependences import Dependences, Why
from gyrator_scheduler.fusion.cluster import Cluster, moved, singleton
from gyrator_scheduler.fusion.cluster_order import ClusterOrder
from gyrator_scheduler.fusion.match import Joint, Refused
from gyrator_scheduler.fusion.match_cache import MatchCache
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.ranges import Ranges

SIBLINGS = 2
"""Number of kernels that read the same buffer to try, for each buffer."""
MAX_REFUSALS = 8


@frozen
class Fusion:
    """Clusters in topological order. `steps` counts the work done."""

    clusters: tuple[Cluster, ...]
    steps: int


def fuse(
    operations: Sequence[Operation],
    dependences: Dependences,
    heuristics: Sequence[Heuristics | None],
    options: SchedulerOptions,
    ranges: Ranges,
    matches: MatchCache,
    deadline: Deadline = NEVER,
) -> Fusion:
    """Partition operations into clusters.

    Greedy in program order: each operation starts as a cluster of its own and is joined with the
    clusters that produce its operands, the nearest first, then with clusters that read the same
    buffers. Work per operation is bounded by `options`, so the total is near-linear.

    Args:
        heuristics: those of each loop's device; None for calls.
        matches: a cache of matched pairs, which calls for programs with the same facts can share.

    Raises:
        LateError: GY-COMPILE-003, when the deadline has passed.
    """
    order = ClusterOrder()
    readers: dict[str, list[int]] = {}
    for index, op in enumerate(operations):
        deadline.check(f"operation {index}")
        c = singleton(index, op)
        c.ordered |= options.in_order and bool(c.inner)
        needed = dependences.before[index]
        c.before = dict.fromkeys(order.find(d.before) for d in needed)
        order.append(c)
        device_heuristics = heuristics[index]
        if device_heuristics is None or not options.fusion:
            continue
        near = index - options.reach
        producers = [d.before for d in needed if d.why is Why.RAW and d.before >= near]
        siblings = [r for b in tuple(c.loads) for r in readers.get(b, ()) if r >= near]
        tried: set[int] = set()
        for other in _nearest(order, producers, siblings, options.merge_candidates):
            own, candidate = order.find(index), order.find(other)
            if own == candidate or candidate in tried:
                continue
            tried.add(candidate)
            if index - order.clusters[candidate].first > options.reach:
                continue
            if (
                order.clusters[candidate].call is not None
                or heuristics[other] is not device_heuristics
            ):
                continue
            _try_join(order, own, candidate, device_heuristics, options, ranges, matches)
        for b in dependences.accesses[index].reads:
            recent = readers.setdefault(b, [])
            recent.append(index)
            if len(recent) > SIBLINGS:
                del recent[0]
    return Fusion(tuple(order.in_order()), order.steps)


def _nearest(
    order: ClusterOrder, producers: Sequence[int], siblings: Sequence[int], limit: int
) -> list[int]:
    """Return up to `limit` operations to join with: producers before siblings, and in each group
    the latest cluster first."""
    chosen: list[int] = []
    visited: set[int] = set()
    for group in (producers, siblings):
        roots: dict[int, int] = {}
        for p in group:
            root = order.find(p)
            if root not in visited:
                roots[root] = p
        ordered = sorted(roots, key=order.label, reverse=True)
        order.steps += len(ordered)
        visited.update(ordered)
        chosen.extend(roots[r] for r in ordered[: limit - len(chosen)])
    return chosen


def _try_join(
    order: ClusterOrder,
    a: int,
    b: int,
    heuristics: Heuristics,
    options: SchedulerOptions,
    ranges: Ranges,
    matches: MatchCache,
) -> None:
    """Join two clusters if that is legal and profitable; else record the reason."""
    low, high = (a, b) if order.label(a) < order.label(b) else (b, a)
    first, second = order.clusters[low], order.clusters[high]
    order.steps += 1
    joint = matches.match(first, second, ranges, heuristics)
    if isinstance(joint, Refused):
        _record_refusal(first, second, joint.text)
        return
    between = order.between(low, high, options.search_steps)
    if between is None:
        _record_refusal(
            first, second, "an operation between them depends on the first and feeds the second"
        )
        return
    order.move_before(between, low)
    _join(order, first, second, joint, ranges)


def _record_refusal(first: Cluster, second: Cluster, reason: str) -> None:
    if len(first.refusals) < MAX_REFUSALS:
        first.refusals[second.members[-1].index] = reason
    if len(second.refusals) < MAX_REFUSALS:
        second.refusals[first.members[-1].index] = reason


def _join(
    order: ClusterOrder, first: Cluster, second: Cluster, joint: Joint, ranges: Ranges
) -> None:
    """Merge two clusters at the position of the first. The smaller one is merged into the
    larger."""
    axes = joint.points + joint.inner
    moved(first, joint.first, axes, ranges, joint.first_inner, joint.first_totals)
    moved(second, joint.second, axes, ranges, joint.second_inner, joint.second_totals)
    target, source = (first, second) if first.size >= second.size else (second, first)
    overwrites = not joint.inner and any(b in first.loads for b in second.stores)
    mutates = overwrites or any(
        c.mutates and (bool(c.inner) or not joint.inner) for c in (first, second)
    )
    target.points, target.inner, target.mutates = joint.points, joint.inner, mutates
    target.sums = first.sums and second.sums and not (joint.first_totals or joint.second_totals)
    target.form = None
    target.members.extend(source.members)
    order.steps += len(source.members)
    for b, addresses in source.loads.items():
        target.loads.setdefault(b, {}).update(addresses)
    target.stores.update(source.stores)
    target.size += source.size
    target.reductions += source.reductions
    target.ordered |= source.ordered
    target.scans |= source.scans
    for index, reason in source.refusals.items():
        if len(target.refusals) < MAX_REFUSALS:
            target.refusals[index] = reason
    order.absorb(target.id, source.id, first.id)
