"""Which elements a program's blocks hold: the loops of a tiled kernel as text has them.

    grid (i0, i1) by XBLOCK                         points, in blocks of XBLOCK
    grid (i0) by 1, grid (i1) by XBLOCK             the same within one value of i0
    ... loop (r0) by RBLOCK                         and their inner elements
    grid (i0) by XBLOCK, grid (i1) by RBLOCK        tiles of points

Positions along each dimension of a block are one number, of which axes are digits.
"""

from attrs import frozen

from gyrator_ir.body.nodes import Axis
from gyrator_ir.expr import Sym
from gyrator_ir.tile.loops import axes_of, in_one_step
from gyrator_ir.tile.nodes import LoopKind, TiledKernel


@frozen
class Blocks:
    """The axes along the dimensions of blocks."""

    first: tuple[Axis, ...]
    second: tuple[Axis, ...] = ()
    still: frozenset[Sym] = frozenset()
    """Axes that have one value in a block of points."""
    whole: bool = False
    """All inner elements of a point are in one block."""
    tiles: bool = False
    """The second axes are points too."""


def blocks_of(tiled: TiledKernel) -> Blocks:
    """Return the blocks of a kernel that is no product of matrices."""
    kernel = tiled.kernel
    grid = [loop for loop in tiled.loops if loop.kind is LoopKind.GRID]
    if not kernel.inner and len(grid) > 1:
        first, second = (axes_of(kernel, loop) for loop in grid)
        return Blocks(first, second, tiles=True)
    points = tuple(a for loop in grid for a in axes_of(kernel, loop))
    still = frozenset(s for loop in grid if loop.step == 1 for s in loop.axes)
    return Blocks(points, kernel.inner, still, in_one_step(tiled))
