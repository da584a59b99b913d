"""`tile-rows`: tile pointwise kernels by row, if expensive values are the same for a whole row.

In a flattened block of points, each thread recomputes values that do not depend on the last axis,
such as the statistics of a channel for every pixel. A tile computes them once per row.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import guess
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Let
from gyrator_ir.body.rewrite import defined, expressions, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.nodes import Choice, Loop, LoopKind, TiledKernel

_ROWS = (1, 2, 4, 8)
_ELEMENTS = (128, 256, 512, 1024, 2048)
_COSTLY = frozenset(
    "div sqrt rsqrt sigmoid exp exp2 expm1 log log2 log1p pow tanh sin cos erf floordiv mod".split()
)


@frozen
class TileRows(KernelPass):
    """Tile pointwise kernels with rows of at least `least` elements that share an expensive value,
    such as a quotient or a root."""

    name: ClassVar[str] = "tile-rows"
    least: int = 256

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if tiled.choices or kernel.inner or len(kernel.axes) < 2 or len(kernel.stages) != 1:
            return tiled
        *first, last = kernel.axes
        if kernel.locals or guess(last.extent, facts) < self.least or not _shares(kernel):
            return tiled
        loops = (
            Loop(LoopKind.GRID, tuple(a.symbol for a in first), "XBLOCK"),
            Loop(LoopKind.GRID, (last.symbol,), "RBLOCK"),
        )
        choices = Choice("XBLOCK", _ROWS), Choice("RBLOCK", _ELEMENTS)
        return evolve(tiled, loops=loops, choices=choices)


def _shares(kernel: Kernel) -> bool:
    """Return whether an expensive value is the same for all points of a row, but not constant."""
    last = kernel.axes[-1].symbol
    of_rows: set[str] = set()
    """Values that are constant along the last axis, but not everywhere."""
    constants: set[str] = set()
    for s in kernel.stages[0].body:
        symbols = {t for e in expressions(s) for t in e.free_symbols}
        operands = used(s)
        if last in symbols or not constants.union(of_rows).issuperset(operands):
            continue
        if symbols or not constants.issuperset(operands):
            if isinstance(s, Let) and s.op in _COSTLY:
                return True
            of_rows.update(defined(s))
        else:
            constants.update(defined(s))
    return False
