"""A cache of `match` results for pairs of clusters that differ only in buffer names.

Such pairs are common: in the layers of a transformer, and when a program is scheduled again because
the first plan needs too much memory.
"""

from attrs import evolve, field

from gyrator_ir.define import define
from gyrator_ir.target import Heuristics
from gyrator_scheduler.fusion.cluster import Cluster
from gyrator_scheduler.fusion.match import Joint, Refused, match
from gyrator_scheduler.ranges import Ranges

MAX_CACHED_BUFFERS = 24
"""Pairs with more buffers are not cached: they seldom recur, and their keys are expensive."""


@define(eq=False)
class MatchCache:
    """Results of `match`, for programs with the same facts."""

    _forms: dict[object, int] = field(factory=dict)
    """Number of each distinct cluster structure: what `match` depends on, without buffer names."""
    _results: dict[object, tuple[Joint | Refused, tuple[str, ...]]] = field(factory=dict)
    """Results, and the buffers of the pair that each was computed for."""

    def match(
        self, first: Cluster, second: Cluster, ranges: Ranges, heuristics: Heuristics
    ) -> Joint | Refused:
        """Return `match(first, second, ranges, heuristics)`."""
        touched = len(first.loads) + len(first.stores) + len(second.loads) + len(second.stores)
        if touched > MAX_CACHED_BUFFERS:
            return match(first, second, ranges, heuristics)
        first_form, first_names = self._form(first)
        second_form, second_names = self._form(second)
        numbers = {name: number for number, name in enumerate(first_names)}
        second_buffers = tuple([numbers.setdefault(name, len(numbers)) for name in second_names])
        key = (first_form, second_form, second_buffers, id(heuristics))
        names = tuple(numbers)
        cached = self._results.get(key)
        if cached is None:
            result = match(first, second, ranges, heuristics)
            self._results[key] = result, names
            return result
        result, cached_names = cached
        if isinstance(result, Refused) and result.buffer:
            return evolve(result, buffer=names[cached_names.index(result.buffer)])
        return result

    def _form(self, c: Cluster) -> tuple[int, tuple[str, ...]]:
        """Return the number of a cluster's structure, and its buffers in order of first use."""
        if c.form is None:
            numbers: dict[str, int] = {}
            loads = [
                (numbers.setdefault(b, len(numbers)), *read.items()) for b, read in c.loads.items()
            ]
            stores = [(numbers.setdefault(b, len(numbers)), w) for b, w in c.stores.items()]
            flags = (
                c.size, c.reductions, c.sums, c.ordered, c.scans, c.never_fused, c.mutates,
            )  # fmt: skip
            form = (c.points, c.inner, tuple(loads), tuple(stores), flags)
            c.form = self._forms.setdefault(form, len(self._forms)), tuple(numbers)
        return c.form
