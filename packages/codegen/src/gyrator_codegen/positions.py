"""Which elements a program's blocks hold: the loops of a tiled kernel as text has them.

    grid (i0, i1) by XBLOCK                         points, in blocks of XBLOCK
    grid (i0) by 1, grid (i1) by XBLOCK             the same within one value of i0
    ... loop (r0) by RBLOCK                         and their inner elements
    grid (i0) by XBLOCK, grid (i1) by RBLOCK        tiles of points

Positions along each dimension of a block are one number, of which axes are digits.
"""

from collections.abc import Iterable

from attrs import frozen

from gyrator_ir.body.nodes import Axis, Load, Store
from gyrator_ir.expr import ONE, ZERO, Const, Expr, Sym
from gyrator_ir.tile.loops import axes_of, in_one_step, steps_of
from gyrator_ir.tile.nodes import Contraction, LoopKind, Method, TiledKernel

_GRID, _LOOP = LoopKind.GRID, LoopKind.LOOP
_POINTS = (_GRID, "XBLOCK")
_INNER = (_LOOP, "RBLOCK")
_NESTS = (
    (_POINTS,),
    (_POINTS, (_GRID, "RBLOCK")),
    (_POINTS, _INNER),
    ((_GRID, 1), _POINTS, _INNER),
)
"""Kinds and steps of loops, as `Blocks` has them."""
_PRODUCT = (_POINTS, (_GRID, "RBLOCK"), (_LOOP, "KBLOCK"))
_PRODUCTS = (
    _PRODUCT,
    ((_GRID, 1), *_PRODUCT),
    (*_PRODUCT, (_LOOP, 1)),
    ((_GRID, 1), *_PRODUCT, (_LOOP, 1)),
)
"""The same of products: batches, rows, columns, depth, and what is summed over one by one."""


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


class Flat:
    """One flattened group of axes: `x`, and each axis's symbol as digits of it.

    Args:
        name: `i` or `r`, the letter of its kind of symbols.
        axes: the outermost first.
        others: symbols that the flat one must differ from, beside those of the axes.
    """

    def __init__(self, name: str, axes: tuple[Axis, ...], others: Iterable[Sym] = ()) -> None:
        taken = {a.symbol.name for a in axes} | {s.name for s in others}
        number = next(n for n in range(len(taken) + 1) if f"{name}_{n}" not in taken)
        self.symbol = Sym(f"{name}_{number}")
        self.digits: dict[Sym, Expr] = {}
        rest: Expr = self.symbol
        for k, a in enumerate(reversed(axes)):
            last = k == len(axes) - 1
            extent = ONE if a.extent is ZERO else a.extent  # without points, no digit matters
            self.digits[a.symbol] = rest if last else rest % extent
            if not last:
                rest = rest // extent


@frozen
class ProductAxes:
    """The axes of each loop of a product of matrices."""

    batches: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    around: tuple[Axis, ...]
    """Those that are summed over one by one."""


def product_axes(tiled: TiledKernel, c: Contraction) -> ProductAxes:
    """Return the axes of each loop of a product."""
    kernel = tiled.kernel
    rows, columns, depth = (axes_of(kernel, tiled.loops[n]) for n in (c.rows, c.columns, c.depth))
    others = [x for n, x in enumerate(tiled.loops) if n not in (c.rows, c.columns, c.depth)]
    batches = (a for x in others if x.kind is LoopKind.GRID for a in axes_of(kernel, x))
    around = (a for x in others if x.kind is LoopKind.LOOP for a in axes_of(kernel, x))
    return ProductAxes(tuple(batches), rows, columns, depth, tuple(around))


@frozen(eq=False)
class Places:
    """The flattened groups of axes of a product of matrices."""

    rows: Flat
    columns: Flat
    batches: Flat
    around: Flat
    depth: Flat
    turned: Flat
    """Depth again, as the first dimension of the right factor's blocks."""
    again: dict[Sym, Expr]
    """What the symbols of its axes are called there."""


def places_of(axes: ProductAxes) -> Places:
    """Return the flattened groups of its axes."""
    again: dict[Sym, Expr] = {a.symbol: Sym(f"r_k{n}") for n, a in enumerate(axes.depth)}
    rows = Flat("i", axes.rows)
    columns = Flat("i", axes.columns, (rows.symbol,))
    batches = Flat("i", axes.batches, (rows.symbol, columns.symbol))
    around = Flat("r", axes.around)
    depth = Flat("r", axes.depth, (around.symbol,))
    renewed = tuple(Axis(Sym(f"r_k{n}"), a.extent) for n, a in enumerate(axes.depth))
    turned = Flat("r", renewed, (around.symbol, depth.symbol))
    return Places(rows, columns, batches, around, depth, turned, again)


def pair_offset(tiled: TiledKernel, written: Expr) -> int | None:
    """Return what an index, as it is written, adds to twice the position of a point; None for any
    other index."""
    position = Flat("i", blocks_of(tiled).first).symbol
    rest = written - 2 * position
    return rest.value if isinstance(rest, Const) else None


def unfit_blocks(tiled: TiledKernel) -> str | None:
    """Return what a language of blocks can't follow in a kernel's decisions, or None: what
    `block_pipeline` never decides."""
    if tiled.threads or tiled.transposed or tiled.prefetches or tiled.cleared:
        return "programs have no threads, prefetches or blocks in memory of their own"
    if not _in_points(tiled):
        return "pairs are at twice the position of a point"
    product = tiled.contraction is not None
    whole = in_one_step(tiled)
    method = Method.MATRIX if product else Method.AT_ONCE if whole else Method.ACCUMULATE
    for r in tiled.reductions:
        if r.method is not method or r.unroll != 1 or r.chain or r.wide or r.block:
            return f"{r.result} is reduced as {method.value}, and in no other way"
    nest = tuple((loop.kind, loop.step) for loop in tiled.loops)
    if nest not in (_PRODUCTS if product else _NESTS):
        return "its loops are none that text has"
    if not product and nest[0] == (_GRID, 1):
        extent = axes_of(tiled.kernel, tiled.loops[1])[-1].extent
        steps = steps_of(tiled, tiled.loops[1])
        if not isinstance(extent, Const) or any(extent.value % step for step in steps):
            return f"blocks of {steps} points reach beyond the axis of {extent!r}"
    return None


def _in_points(tiled: TiledKernel) -> bool:
    forms = {f.index: f.written for f in tiled.forms}
    for p in tiled.pairs:
        one = tiled.kernel.stages[p.stage].body[p.first]
        assert isinstance(one, Load | Store)
        if blocks_of(tiled).second or pair_offset(tiled, forms.get(one.index, one.index)) is None:
            return False
    return True
