"""`group-exponentials`: combine adjacent exponentials before they are accumulated.

An accumulator of sum(exp(x - max)) takes a new element with an exponential, comparisons and
selections, about 30 instructions in all, which take longer than loading a 16-bit element. A group
of elements shares those of the accumulator: its maximum, and the exponential that scales the sum.
A block's elements are added as in "Online normalizer calculation for softmax", Milakov and
Gimelshein 2018.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.lanes import consecutive, consecutive_inside
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Load, Reduce, ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ZERO, ShapeFacts, subs
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.loops import in_one_step
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

_ACCESS = 16  # bytes per access of a thread


@frozen
class GroupExponentials(KernelPass):
    """Accumulate `f32` exponentials of long contiguous rows in groups.

    A group is what a thread loads by one access, so that threads exchange nothing. Where rows are
    not aligned to such accesses, a thread loads `apart` elements at equal distances.
    """

    name: ClassVar[str] = "group-exponentials"
    apart: int = 8

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if not kernel.inner or in_one_step(tiled) or not consecutive_inside(kernel):
            return tiled
        grouped = {
            s.names[0]
            for s in kernel.statements
            if isinstance(s, Reduce)
            and s.kind is ReduceKind.ONLINE_SOFTMAX
            and s.dtype is DType.F32
        }
        if not grouped:
            return tiled
        adjacent = _aligned(kernel, facts)
        reductions = (
            evolve(r, group=adjacent or self.apart, apart=not adjacent)
            if r.result in grouped
            else r
            for r in tiled.reductions
        )
        return evolve(tiled, reductions=tuple(reductions))


def _aligned(kernel: Kernel, facts: ShapeFacts) -> int:
    """Return how many elements a thread loads of each row by one access, 0 if not that many."""
    last, storage = kernel.inner[-1], kernel.storage
    loads = [
        (s.index, storage[s.buffer].size)
        for s in kernel.statements
        if isinstance(s, Load) and consecutive(s.index, last)
    ]
    if not loads:
        return 0
    together = _ACCESS // max(size for _, size in loads)
    starts = (subs(index, {last.symbol: 0}) for index, _ in loads)
    aligned = all(facts.simplify(start % together) is ZERO for start in starts)
    return together if aligned else 0
