"""What `match` found for one pair of clusters holds for every pair like it.

Two pairs are alike if they differ in the names of buffers only. There are many: the layers of a
transformer, and what is tried again where a first plan needs too much memory.
"""

from attrs import define, evolve, field

from gyrator_ir.target import Heuristics
from gyrator_scheduler.fusion.cluster import Cluster
from gyrator_scheduler.fusion.match import Joint, Refused, match
from gyrator_scheduler.ranges import Ranges

MAX_KEPT = 24
"""Pairs that touch more buffers are rarely met again, and take long to describe."""


@define(eq=False)
class Matches:
    """Answers of `match`, for programs with the same facts."""

    _forms: dict[object, int] = field(factory=dict)
    """What `match` reads of a cluster, but for names of buffers, numbered."""
    _found: dict[object, tuple[Joint | Refused, tuple[str, ...]]] = field(factory=dict)
    """Answers, and the buffers of the pair that was asked about."""

    def match(
        self, first: Cluster, second: Cluster, ranges: Ranges, heuristics: Heuristics
    ) -> Joint | Refused:
        """Return what `match` returns."""
        touched = len(first.loads) + len(first.stores) + len(second.loads) + len(second.stores)
        if touched > MAX_KEPT:
            return match(first, second, ranges, heuristics)
        one, mine = self._form(first)
        other, theirs = self._form(second)
        numbers = {name: number for number, name in enumerate(mine)}
        places = tuple([numbers.setdefault(name, len(numbers)) for name in theirs])
        key = (one, other, places, id(heuristics))
        names = tuple(numbers)
        known = self._found.get(key)
        if known is None:
            found = match(first, second, ranges, heuristics)
            self._found[key] = found, names
            return found
        found, others = known
        if isinstance(found, Refused) and found.buffer:
            return evolve(found, buffer=names[others.index(found.buffer)])
        return found

    def _form(self, c: Cluster) -> tuple[int, tuple[str, ...]]:
        """Return the number of a cluster's form, and its buffers in order of first use."""
        if c.form is None:
            numbers: dict[str, int] = {}
            loads = [
                (numbers.setdefault(b, len(numbers)), *read.items()) for b, read in c.loads.items()
            ]
            stores = [(numbers.setdefault(b, len(numbers)), w) for b, w in c.stores.items()]
            flags = (c.size, c.folds, c.ordered, c.scans, c.alone, c.mutates)
            form = (c.points, c.inner, tuple(loads), tuple(stores), flags)
            c.form = self._forms.setdefault(form, len(self._forms)), tuple(numbers)
        return c.form
