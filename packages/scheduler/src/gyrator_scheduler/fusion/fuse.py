"""Greedy fusion: every operation, in program order, tries to join the kernels next to it."""

from collections.abc import Sequence

from attrs import frozen

from gyrator_ir.deadline import NEVER, Deadline
from gyrator_ir.loop.nodes import Operation
from gyrator_ir.target import Heuristics
from gyrator_scheduler.dependences import Dependences, Why
from gyrator_scheduler.fusion.cluster import Cluster, moved, singleton
from gyrator_scheduler.fusion.line import Line
from gyrator_scheduler.fusion.match import Joint, Refused
from gyrator_scheduler.fusion.matches import Matches
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.ranges import Ranges

SIBLINGS = 2
"""How many kernels that read the same buffer are tried, for each buffer."""
MAX_REFUSALS = 8


@frozen
class Fusion:
    """Clusters in an order in which they can run; `steps` counts the work it took."""

    clusters: tuple[Cluster, ...]
    steps: int


def fuse(
    operations: Sequence[Operation],
    dependences: Dependences,
    heuristics: Sequence[Heuristics | None],
    options: SchedulerOptions,
    ranges: Ranges,
    matches: Matches,
    deadline: Deadline = NEVER,
) -> Fusion:
    """Put operations into clusters. `heuristics` has those of each loop's device, None for calls.
    `matches` remembers which pairs fit, those of earlier calls for the same facts included.
    LateError (GY-COMPILE-003) where the deadline is past.

    Greedy in program order: the operation, alone in a cluster, is joined with clusters that produce
    what it reads (the nearest first), then with clusters that read the same. Work per operation is
    bounded by `options`, so the whole is near-linear.
    """
    line = Line()
    readers: dict[str, list[int]] = {}
    for index, op in enumerate(operations):
        deadline.check(f"operation {index}")
        c = singleton(index, op)
        c.ordered |= options.in_order and bool(c.inner)
        needed = dependences.before[index]
        c.before = dict.fromkeys(line.find(d.before) for d in needed)
        line.append(c)
        given = heuristics[index]
        if given is None or not options.fusion:
            continue
        near = index - options.reach
        producers = [d.before for d in needed if d.why is Why.RAW and d.before >= near]
        siblings = [r for b in tuple(c.loads) for r in readers.get(b, ()) if r >= near]
        tried: set[int] = set()
        for other in _nearest(line, producers, siblings, options.merge_candidates):
            mine, theirs = line.find(index), line.find(other)
            if mine == theirs or theirs in tried:
                continue
            tried.add(theirs)
            if index - line.clusters[theirs].first > options.reach:
                continue
            if line.clusters[theirs].call is not None or heuristics[other] is not given:
                continue
            _try(line, mine, theirs, given, options, ranges, matches)
        for b in dependences.accesses[index].reads:
            recent = readers.setdefault(b, [])
            recent.append(index)
            if len(recent) > SIBLINGS:
                del recent[0]
    return Fusion(tuple(line.in_order()), line.steps)


def _nearest(
    line: Line, producers: Sequence[int], siblings: Sequence[int], limit: int
) -> list[int]:
    """Return up to `limit` operations to join, producers first, the latest cluster first."""
    chosen: list[int] = []
    seen: set[int] = set()
    for group in (producers, siblings):
        roots: dict[int, int] = {}
        for p in group:
            root = line.find(p)
            if root not in seen:
                roots[root] = p
        ordered = sorted(roots, key=line.label, reverse=True)
        line.steps += len(ordered)
        seen.update(ordered)
        chosen.extend(roots[r] for r in ordered[: limit - len(chosen)])
    return chosen


def _try(
    line: Line,
    a: int,
    b: int,
    heuristics: Heuristics,
    options: SchedulerOptions,
    ranges: Ranges,
    matches: Matches,
) -> None:
    """Join two clusters if that is legal and worth it; else note why not."""
    low, high = (a, b) if line.label(a) < line.label(b) else (b, a)
    first, second = line.clusters[low], line.clusters[high]
    line.steps += 1
    joint = matches.match(first, second, ranges, heuristics)
    if isinstance(joint, Refused):
        _note(first, second, joint.text)
        return
    between = line.between(low, high, options.search_steps)
    if between is None:
        _note(first, second, "what runs between them needs the first and is needed by the second")
        return
    line.move_before(between, low)
    _join(line, first, second, joint, ranges)


def _note(first: Cluster, second: Cluster, reason: str) -> None:
    if len(first.refusals) < MAX_REFUSALS:
        first.refusals[second.members[-1].index] = reason
    if len(second.refusals) < MAX_REFUSALS:
        second.refusals[first.members[-1].index] = reason


def _join(line: Line, first: Cluster, second: Cluster, joint: Joint, ranges: Ranges) -> None:
    """Make one cluster of two, in the place of the first; the smaller one is rewritten."""
    axes = joint.points + joint.inner
    moved(first, joint.first, axes, ranges, joint.first_inner)
    moved(second, joint.second, axes, ranges, joint.second_inner)
    kept, gone = (first, second) if first.size >= second.size else (second, first)
    overwrites = not joint.inner and any(b in first.loads for b in second.stores)
    mutates = overwrites or any(
        c.mutates and (bool(c.inner) or not joint.inner) for c in (first, second)
    )
    kept.points, kept.inner, kept.mutates = joint.points, joint.inner, mutates
    kept.form = None
    kept.members.extend(gone.members)
    line.steps += len(gone.members)
    for b, found in gone.loads.items():
        kept.loads.setdefault(b, {}).update(found)
    kept.stores.update(gone.stores)
    kept.size += gone.size
    kept.folds += gone.folds
    kept.ordered |= gone.ordered
    kept.scans |= gone.scans
    for index, reason in gone.refusals.items():
        if len(kept.refusals) < MAX_REFUSALS:
            kept.refusals[index] = reason
    line.absorb(kept.id, gone.id, first.id)
