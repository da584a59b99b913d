"""A topological order of clusters that is maintained while clusters are fused.

Each cluster has a label; every dependence goes from a smaller to a larger label. Fusing two
clusters searches only the clusters between their labels (after Pearce and Kelly, "A dynamic
topological sort algorithm for directed acyclic graphs", 2006). Labels are spaced so that clusters
can be inserted between others.
"""

from attrs import field

from gyrator_ir.define import define
from gyrator_scheduler.fusion.cluster import Cluster

GAP = 1 << 40


@define(eq=False)
class ClusterOrder:
    """Clusters by id, with their labels and neighbours. `steps` counts the work done."""

    clusters: dict[int, Cluster] = field(factory=dict)
    steps: int = 0
    _label: dict[int, int] = field(factory=dict)
    _previous: dict[int, int] = field(factory=dict)
    _next: dict[int, int] = field(factory=dict)
    _last: int = -1
    _root: dict[int, int] = field(factory=dict)

    def label(self, cluster: int) -> int:
        """Return the label of a cluster. Only the relative order of labels is meaningful."""
        return self._label[cluster]

    def find(self, index: int) -> int:
        """Return the id of the cluster that contains the operation at `index` (union-find)."""
        root = index
        while self._root[root] != root:
            root = self._root[root]
            self.steps += 1
        while self._root[index] != root:
            self._root[index], index = root, self._root[index]
        return root

    def append(self, c: Cluster) -> None:
        """Append a new cluster. Its predecessors must have been added before."""
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
        """Return, in order, the clusters after `low` that must run before `high`.

        None if one of them depends on `low`, so that fusing the two would create a cycle, or if the
        search takes more than `limit` steps.
        """
        floor = self._label[low]
        result: dict[int, None] = {}
        stack = [high]
        while stack:
            current = stack.pop()
            for b in self.clusters[current].before:
                self.steps += 1
                limit -= 1
                if limit < 0 or (b == low and current != high):
                    return None
                if self._label[b] > floor and b not in result:
                    result[b] = None
                    stack.append(b)
        return sorted(result, key=self._label.__getitem__)

    def move_before(self, moved: list[int], target: int) -> None:
        """Move clusters, in the given order, directly before `target`."""
        for c in moved:
            self._unlink(c)
            previous = self._previous[target]
            self._previous[c], self._next[c] = previous, target
            self._previous[target] = c
            if previous >= 0:
                self._next[previous] = c
                low = self._label[previous]
            else:
                low = self._label[target] - 2 * GAP
            self._label[c] = (low + self._label[target]) // 2
            self.steps += 1
            if self._label[c] in (low, self._label[target]):
                self._relabel()

    def absorb(self, survivor: int, absorbed: int, position: int) -> None:
        """Merge cluster `absorbed` into `survivor`, at the position of `position`, which is one of
        the two."""
        self._root[absorbed] = survivor
        if position == absorbed:
            self._replace(survivor, absorbed)
        self._unlink(absorbed)
        del self._label[absorbed]
        target, source = self.clusters[survivor], self.clusters.pop(absorbed)
        for b in source.before:
            self.steps += 1
            del self.clusters[b].after[absorbed]
            if b != survivor:
                self.clusters[b].after[survivor] = None
                target.before[b] = None
        for a in source.after:
            self.steps += 1
            del self.clusters[a].before[absorbed]
            if a != survivor:
                self.clusters[a].before[survivor] = None
                target.after[a] = None

    def in_order(self) -> list[Cluster]:
        """Return the clusters in topological order."""
        return sorted(self.clusters.values(), key=lambda c: self._label[c.id])

    def _replace(self, a: int, b: int) -> None:
        """Move `a` to the position of `b`, with the same label. The caller removes `b` next."""
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
