"""A cache of kernels for repeated parts of a program, such as the layers of a transformer.

Clusters that differ only in buffer names share one kernel, with its buffers renamed.
"""

from collections.abc import Callable, Mapping

from attrs import evolve, field

from gyrator_ir.body.nodes import Load, Store
from gyrator_ir.body.rewrite import rewritten
from gyrator_ir.define import define
from gyrator_ir.kernel.nodes import Kernel, Stage
from gyrator_ir.loop.nodes import Buffer, LoopOperation
from gyrator_ir.loop.uses import statements_of
from gyrator_ir.target import Heuristics
from gyrator_scheduler.fusion.cluster import Cluster
from gyrator_scheduler.fusion.match_cache import MatchCache


@define(eq=False)
class KernelCache:
    """Kernels by cluster structure, for programs with the same facts and numerics."""

    matches: MatchCache = field(factory=MatchCache)
    """The cache of matched pairs of clusters."""
    _shapes: dict[object, int] = field(factory=dict)
    """Number of each distinct body, without buffer names."""
    _bodies: dict[int, tuple[LoopOperation, int, tuple[str, ...]]] = field(factory=dict)
    """By the id of an operation: the operation, the number of its body, and its buffers. The
    reference keeps the id valid."""
    _kernels: dict[object, tuple[Kernel, tuple[str, ...]]] = field(factory=dict)

    def kernel(
        self,
        cluster: Cluster,
        exported: set[str],
        buffers: Mapping[str, Buffer],
        heuristics: Heuristics,
        origins: tuple[int, ...],
        make: Callable[[], Kernel],
    ) -> Kernel:
        """Return `make()` for a cluster, or the cached kernel of an equivalent one with its buffers
        renamed."""
        key, names = self._key(cluster, exported, buffers, heuristics)
        cached = self._kernels.get(key)
        if cached is None:
            kernel = make()
            self._kernels[key] = kernel, names
            return kernel
        kernel, cached_names = cached
        if cached_names == names:
            return evolve(kernel, origins=origins)
        renaming = dict(zip(cached_names, names, strict=True))
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
        exported: set[str],
        buffers: Mapping[str, Buffer],
        heuristics: Heuristics,
    ) -> tuple[object, tuple[str, ...]]:
        """Return the structure of a cluster, and its buffers in order of first use."""
        numbers: dict[str, int] = {}
        members: list[object] = []
        for m in sorted(cluster.members, key=lambda m: m.index):
            shape, names = self._shape(m.op)
            positions = tuple([numbers.setdefault(n, len(numbers)) for n in names])
            members.append((shape, positions, tuple(m.axes.items()), m.inner, m.total))
        stores = tuple([(numbers[b], w) for b, w in cluster.stores.items()])
        layouts: list[object] = []
        for n in numbers:
            b = buffers[n]
            layouts.append((b.dtype, b.device, b.shape, b.strides, n in exported))
        key = (
            cluster.points, cluster.inner, tuple(members), stores, tuple(layouts), id(heuristics),
        )  # fmt: skip
        return key, tuple(numbers)

    def _shape(self, op: LoopOperation) -> tuple[int, tuple[str, ...]]:
        """Return the number of an operation's body, and the buffers that it accesses."""
        cached = self._bodies.get(id(op))
        if cached is not None:
            return cached[1:]
        numbers: dict[str, int] = {}
        body: list[object] = [type(op)]
        for s in statements_of(op):
            match s:
                case Load(name, buffer, index, mask):
                    position = numbers.setdefault(buffer, len(numbers))
                    body.append((name, position, index, mask))
                case Store(buffer, index, value, mode, mask):
                    position = numbers.setdefault(buffer, len(numbers))
                    body.append((position, index, value, mode, mask))
                case _:
                    body.append(s)
        shape = self._shapes.setdefault(tuple(body), len(self._shapes))
        names = tuple(numbers)
        self._bodies[id(op)] = op, shape, names
        return shape, names
