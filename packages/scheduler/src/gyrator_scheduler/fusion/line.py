"""Clusters in an order in which they can run, kept while clusters are joined.

Each cluster has a label; every dependence goes from a smaller to a larger one. Joining two clusters
searches only what lies between their labels (after Pearce and Kelly, "A dynamic topological sort
algorithm for directed acyclic graphs", 2006), and labels leave room to put nodes in between.
"""

from attrs import define, field

from gyrator_scheduler.fusion.cluster import Cluster

GAP = 1 << 40


@define(eq=False)
class Line:
    """Clusters by id, their labels and neighbours, and how many steps the work on them took."""

    clusters: dict[int, Cluster] = field(factory=dict)
    steps: int = 0
    _label: dict[int, int] = field(factory=dict)
    _previous: dict[int, int] = field(factory=dict)
    _next: dict[int, int] = field(factory=dict)
    _last: int = -1
    _root: dict[int, int] = field(factory=dict)

    def label(self, cluster: int) -> int:
        """Return where a cluster stands; only the order of labels means something."""
        return self._label[cluster]

    def find(self, index: int) -> int:
        """Return the cluster that the cluster first called `index` is part of now."""
        root = index
        while self._root[root] != root:
            root = self._root[root]
            self.steps += 1
        while self._root[index] != root:
            self._root[index], index = root, self._root[index]
        return root

    def append(self, c: Cluster) -> None:
        """Put a new cluster last. Its `before` names clusters that are there."""
        self.clusters[c.id] = c
        self._root[c.id] = c.id
        self._label[c.id] = self._label[self._last] + GAP if self._last >= 0 else 0
        self._previous[c.id], self._next[c.id] = self._last, -1
        if self._last >= 0:
            self._next[self._last] = c.id
        self._last = c.id
        for b in c.before:
            self.clusters[b].after[c.id] = None

    def between(self, low: int, high: int, limit: int) -> list[int] | None:
        """Return what must run before `high` and stands after `low`, in order.

        None if some of it needs `low` (joining the two would make a cycle), or if finding out takes
        more than `limit` steps.
        """
        floor = self._label[low]
        found: dict[int, None] = {}
        stack = [high]
        while stack:
            current = stack.pop()
            for b in self.clusters[current].before:
                self.steps += 1
                limit -= 1
                if limit < 0 or (b == low and current != high):
                    return None
                if self._label[b] > floor and b not in found:
                    found[b] = None
                    stack.append(b)
        return sorted(found, key=self._label.__getitem__)

    def move_before(self, moved: list[int], place: int) -> None:
        """Put clusters, in this order, directly before another one."""
        for c in moved:
            self._unlink(c)
            previous = self._previous[place]
            self._previous[c], self._next[c] = previous, place
            self._previous[place] = c
            if previous >= 0:
                self._next[previous] = c
                low = self._label[previous]
            else:
                low = self._label[place] - 2 * GAP
            self._label[c] = (low + self._label[place]) // 2
            self.steps += 1
            if self._label[c] in (low, self._label[place]):
                self._relabel()

    def absorb(self, kept: int, gone: int, place: int) -> None:
        """Make two clusters one, at the place of `place`, one of the two."""
        self._root[gone] = kept
        if place == gone:
            self._take_place(kept, gone)
        self._unlink(gone)
        del self._label[gone]
        keeper, goer = self.clusters[kept], self.clusters.pop(gone)
        for b in goer.before:
            self.steps += 1
            del self.clusters[b].after[gone]
            if b != kept:
                self.clusters[b].after[kept] = None
                keeper.before[b] = None
        for a in goer.after:
            self.steps += 1
            del self.clusters[a].before[gone]
            if a != kept:
                self.clusters[a].before[kept] = None
                keeper.after[a] = None

    def in_order(self) -> list[Cluster]:
        """Return the clusters, each after what it needs."""
        return sorted(self.clusters.values(), key=lambda c: self._label[c.id])

    def _take_place(self, a: int, b: int) -> None:
        """Move `a` to where `b` stands, with the same label: `b` is about to go."""
        self._unlink(a)
        previous = self._previous[b]
        self._previous[a], self._next[a] = previous, b
        self._previous[b] = a
        if previous >= 0:
            self._next[previous] = a
        self._label[a] = self._label[b]

    def _unlink(self, c: int) -> None:
        previous, following = self._previous[c], self._next[c]
        if previous >= 0:
            self._next[previous] = following
        if following >= 0:
            self._previous[following] = previous
        else:
            self._last = previous

    def _relabel(self) -> None:
        c, chain = self._last, []
        while c >= 0:
            chain.append(c)
            c = self._previous[c]
            self.steps += 1
        for n, c in enumerate(reversed(chain)):
            self._label[c] = n * GAP
