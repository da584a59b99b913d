"""`share-threads`: whether to distribute the units of a kernel among threads."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import ordered, static, stores_in_order, work
from gyrator_codegen.nests import steps
from gyrator_codegen.passes.rewriting import each_kernel
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts, product_of
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import LoopKind, Threads, TiledGroup, TiledKernel, TileProgram

_ONE_BY_ONE = 4  # cost of an element without vectors, relative to one in a vector
_NEVER = 1 << 62  # more operations than in any launch


@frozen
class ShareThreads:
    """Distribute all grid loops among threads if there is enough work, else none. Nor those of
    kernels whose stores may collide and must happen in order."""

    cores: int = 1
    grain: int = 16384
    """The number of operations below which threads cost more than they save."""

    name: ClassVar[str] = "share-threads"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with threads. Kernels that run in one thread need no atomics."""
        program = each_kernel(program, self._tile)
        if not any(isinstance(k, TiledGroup) for k in program.kernels):
            return program
        kernels = tuple(self._group(k) if isinstance(k, TiledGroup) else k for k in program.kernels)
        return evolve(program, kernels=kernels)

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        grain = max(1, self.grain // _cost(kernel))
        grid = tuple(x for x in tiled.loops if x.kind is LoopKind.GRID)
        elements = static(extent_of(kernel.axes + kernel.inner))
        count = static(product_of(steps(kernel, loop) for loop in grid))
        few = count is not None and count <= 1
        small = few or (elements is not None and elements < grain)
        if self.cores <= 1 or small or stores_in_order(kernel):
            return evolve(tiled, threads=Threads(0), atomic=())
        return evolve(tiled, threads=Threads(len(grid), grain))

    def _group(self, group: TiledGroup) -> TiledGroup:
        costs = tuple(_cost(k.kernel) for k in group.kernels)
        return evolve(group, costs=costs, grain=self.grain if self.cores > 1 else _NEVER)


def _cost(kernel: Kernel) -> int:
    """Return the approximate cost of an element. Scans and sorts use no vectors."""
    parts = (work(s.body) * (_ONE_BY_ONE if ordered(s) else 1) for s in kernel.stages)
    return max(1, sum(parts) // 8)
