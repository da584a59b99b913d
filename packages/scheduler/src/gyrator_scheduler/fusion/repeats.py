"""Repeated parts of a program, such as the layers of a transformer, become kernels once.

Two clusters are alike if they differ in the names of buffers only. The kernel of the first is then
that of the second, with other names.
"""

from collections.abc import Callable, Mapping

from attrs import define, evolve, field

from gyrator_ir.body.nodes import Load, Store
from gyrator_ir.body.rewrite import rewritten
from gyrator_ir.kernel.nodes import Kernel, Stage
from gyrator_ir.loop.nodes import Buffer, LoopOperation
from gyrator_ir.target import Heuristics
from gyrator_scheduler.access import statements_of
from gyrator_scheduler.fusion.cluster import Cluster
from gyrator_scheduler.fusion.matches import Matches


@define(eq=False)
class Repeats:
    """Kernels by the structure of their clusters, for programs with the same facts and numerics."""

    matches: Matches = field(factory=Matches)
    """Which of those clusters fit together."""
    _shapes: dict[object, int] = field(factory=dict)
    """Bodies without the names of buffers, numbered."""
    _known: dict[int, tuple[LoopOperation, int, tuple[str, ...]]] = field(factory=dict)
    """By the address of an operation: itself, its body's number, and its buffers."""
    _made: dict[object, tuple[Kernel, tuple[str, ...]]] = field(factory=dict)

    def kernel(
        self,
        cluster: Cluster,
        wanted: set[str],
        buffers: Mapping[str, Buffer],
        heuristics: Heuristics,
        origins: tuple[int, ...],
        make: Callable[[], Kernel],
    ) -> Kernel:
        """Return what `make` returns for a cluster, or for one that is like it."""
        key, names = self._key(cluster, wanted, buffers, heuristics)
        found = self._made.get(key)
        if found is None:
            kernel = make()
            self._made[key] = kernel, names
            return kernel
        kernel, others = found
        if others == names:
            return evolve(kernel, origins=origins)
        renaming = dict(zip(others, names, strict=True))
        stages = [
            Stage(stage.level, tuple([rewritten(s, buffers=renaming) for s in stage.body]))
            for stage in kernel.stages
        ]
        return evolve(
            kernel,
            stages=tuple(stages),
            parameters=tuple([buffers[renaming[b.name]].parts for b in kernel.parameters]),
            origins=origins,
        )

    def _key(
        self,
        cluster: Cluster,
        wanted: set[str],
        buffers: Mapping[str, Buffer],
        heuristics: Heuristics,
    ) -> tuple[object, tuple[str, ...]]:
        """Return the structure of a cluster, and its buffers in the order of their first use."""
        numbers: dict[str, int] = {}
        members: list[object] = []
        for m in sorted(cluster.members, key=lambda m: m.index):
            shape, names = self._shape(m.op)
            places = tuple([numbers.setdefault(n, len(numbers)) for n in names])
            members.append((shape, places, tuple(m.axes.items()), m.inner))
        stores = tuple([(numbers[b], w) for b, w in cluster.stores.items()])
        layouts: list[object] = []
        for n in numbers:
            b = buffers[n]
            layouts.append((b.dtype, b.device, b.shape, b.strides, n in wanted))
        key = (
            cluster.points, cluster.inner, tuple(members), stores, tuple(layouts), id(heuristics),
        )  # fmt: skip
        return key, tuple(numbers)

    def _shape(self, op: LoopOperation) -> tuple[int, tuple[str, ...]]:
        """Return the number of an operation's body, and the buffers that it touches."""
        known = self._known.get(id(op))
        if known is not None:
            return known[1:]
        numbers: dict[str, int] = {}
        body: list[object] = [type(op)]
        for s in statements_of(op):
            match s:
                case Load(name, buffer, index, mask):
                    place = numbers.setdefault(buffer, len(numbers))
                    body.append((name, place, index, mask))
                case Store(buffer, index, value, mode, mask):
                    place = numbers.setdefault(buffer, len(numbers))
                    body.append((place, index, value, mode, mask))
                case _:
                    body.append(s)
        shape = self._shapes.setdefault(tuple(body), len(self._shapes))
        names = tuple(numbers)
        self._known[id(op)] = op, shape, names
        return shape, names
