"""Collectives beside compute: start them as early as possible, wait as late as possible."""

from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_ir.loop.nodes import CollectiveCall, CollectiveWait, LoopProgram, Operation
from gyrator_scheduler.dependences import Why, dependences
from gyrator_scheduler.options import SchedulerOptions

__all__ = ["OverlapCollectives", "overlapping"]


@frozen
class OverlapCollectives:
    """Reorder a program so that work runs between the start of a collective and its wait.

    Of the operations that could come next, starts go first and waits last; all others keep their
    order. Starts keep theirs, too: every process must issue them alike.
    """

    name: ClassVar[str] = "overlap-collectives"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program in its new order, or the same object where nothing moves."""
        operations = program.operations
        edges = dependences(operations, program.buffers).before
        needs = [
            {
                d.before
                for d in before
                if d.why is not Why.EFFECT or not _free(operations[d.before], operations[after])
            }
            for after, before in enumerate(edges)
        ]
        started = [k for k, o in enumerate(operations) if isinstance(o, CollectiveCall)]
        for earlier, later in pairwise(started):
            needs[later].add(earlier)
        order = _ordered(operations, needs)
        if order == list(range(len(operations))):
            return program
        return evolve(program, operations=tuple(operations[k] for k in order))


def overlapping(options: SchedulerOptions) -> SchedulerOptions:
    """Return options whose passes end with this one, and whose order stays what it made."""
    return evolve(options, passes=options.passes.last("loop", OverlapCollectives()))


def _free(before: Operation, after: Operation) -> bool:
    """Whether two effects may change places: a wait is bound by its buffer alone."""
    return isinstance(before, CollectiveWait) or isinstance(after, CollectiveWait)


def _ordered(operations: tuple[Operation, ...], needs: list[set[int]]) -> list[int]:
    followers: dict[int, list[int]] = {}
    for k, before in enumerate(needs):
        for b in before:
            followers.setdefault(b, []).append(k)

    def key(k: int) -> tuple[int, int]:
        operation = operations[k]
        rank = isinstance(operation, CollectiveWait) - isinstance(operation, CollectiveCall)
        return rank, k

    waiting = [len(before) for before in needs]
    ready = [key(k) for k, count in enumerate(waiting) if count == 0]
    heapify(ready)
    result: list[int] = []
    while ready:
        _, k = heappop(ready)
        result.append(k)
        for follower in followers.get(k, ()):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heappush(ready, key(follower))
    return result
