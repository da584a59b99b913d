"""`tile-transposes`: two-dimensional tiles for kernels that transpose data.

The accesses of a flattened block are contiguous along one axis only. For an access that is
contiguous along another axis, the elements of the block are far apart, and each costs a whole cache
line. A two-dimensional tile is contiguous along both axes.
"""

from math import prod
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import guess
from gyrator_codegen.lanes import consecutive
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Load, Store
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.nodes import Choice, Loop, LoopKind, TiledKernel

_SIDES = (16, 32, 64, 128)


@frozen
class TileTransposes(KernelPass):
    """Tile pointwise kernels by two grid loops, each of which ends with an axis along which some
    accesses are contiguous.

    Tiles do not help along an axis of fewer than `side` elements, nor for kernels of fewer than
    `points` points.
    """

    name: ClassVar[str] = "tile-transposes"
    side: int = 8
    points: int = 4096

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.inner or len(kernel.axes) < 2 or len(kernel.stages) != 1 or kernel.locals:
            return tiled
        cut = _cut(kernel)
        if cut is None:
            return tiled
        first, second = kernel.axes[: cut + 1], kernel.axes[cut + 1 :]
        sides = [prod(guess(a.extent, facts) for a in group) for group in (first, second)]
        least = min(guess(kernel.axes[cut].extent, facts), *sides)
        if least < self.side or sides[0] * sides[1] < self.points:
            return tiled
        loops = (
            Loop(LoopKind.GRID, tuple(a.symbol for a in first), "XBLOCK"),
            Loop(LoopKind.GRID, tuple(a.symbol for a in second), "RBLOCK"),
        )
        choices = Choice("XBLOCK", _SIDES), Choice("RBLOCK", _SIDES)
        return evolve(tiled, loops=loops, choices=choices)


def _cut(kernel: Kernel) -> int | None:
    """Return the last axis of the first loop: the one along which most of the bytes that are
    strided along the last axis are contiguous."""
    axes = kernel.axes
    sizes = {b.name: b.dtype.size for b in kernel.parameters}
    gain = dict.fromkeys(range(len(axes) - 1), 0)
    straight = 0
    for s in kernel.stages[0].body:
        if not isinstance(s, Load | Store):
            continue
        symbols = s.index.free_symbols
        if axes[-1].symbol not in symbols or consecutive(s.index, axes[-1]):
            straight += sizes[s.buffer] * (axes[-1].symbol in symbols)
            continue
        along = next((k for k in reversed(gain) if consecutive(s.index, axes[k])), None)
        if along is not None:
            gain[along] += sizes[s.buffer]
    best = max(gain, key=lambda k: gain[k])
    return best if gain[best] and straight else None
