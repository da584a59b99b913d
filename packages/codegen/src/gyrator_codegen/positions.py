"""The blocks of a program: the loop nests that languages of blocks support.

    grid (i0, i1) by XBLOCK                         points, in blocks of XBLOCK
    grid (i0) by 1, grid (i1) by XBLOCK             the same for one value of i0
    ... loop (r0) by RBLOCK                         and their inner elements
    grid (i0) by 1, loop (i1) by XBLOCK,
        loop (r0) by RBLOCK                         rows whose columns are summed over i1
    grid (i0) by XBLOCK, grid (i1) by RBLOCK        tiles of points

Each dimension of a block has one linear index, from which the index of each axis is computed.
"""

from collections.abc import Iterable

from attrs import field

from gyrator_ir.body.nodes import Axis, Load, Store
from gyrator_ir.body.rewrite import AnyStatement, expressions, renamed
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import ONE, ZERO, Const, Expr, FloorDiv, Mod, Sym
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.tile.loops import axes_of, in_one_step, steps_of
from gyrator_ir.tile.nodes import Contraction, LoopKind, Method, Product, Reduction, TiledKernel
from gyrator_ir.types import DType

_GRID, _LOOP = LoopKind.GRID, LoopKind.LOOP
_POINTS = (_GRID, "XBLOCK")
_INNER = (_LOOP, "RBLOCK")
_NESTS = (
    (_POINTS,),
    (_POINTS, (_GRID, "RBLOCK")),
    (_POINTS, _INNER),
    ((_GRID, 1), _POINTS, _INNER),
    ((_GRID, 1), (_LOOP, "XBLOCK"), _INNER),
)
"""The supported loop nests, as kinds and steps of loops."""
_PRODUCT = (_POINTS, (_GRID, "RBLOCK"), (_LOOP, "KBLOCK"))
_PRODUCTS = (
    _PRODUCT,
    ((_GRID, 1), *_PRODUCT),
    (*_PRODUCT, (_LOOP, 1)),
    ((_GRID, 1), *_PRODUCT, (_LOOP, 1)),
)
"""The supported nests of matrix products: batches, rows, columns, depth, and further contracted
axes that are iterated over one element at a time."""


@frozen
class Blocks:
    """The axes along each dimension of a block."""

    first: tuple[Axis, ...]
    second: tuple[Axis, ...] = ()
    still: frozenset[Sym] = frozenset()
    """Axes that have a single value within a block of points."""
    whole: bool = False
    """Whether one block covers all inner elements of a point."""
    tiles: bool = False
    """Whether the second axes are axes of points too."""


def blocks_of(tiled: TiledKernel) -> Blocks:
    """Return the blocks of a kernel that is not a matrix product."""
    kernel = tiled.kernel
    grid = [loop for loop in tiled.loops if loop.kind is LoopKind.GRID]
    if not kernel.inner and len(grid) > 1:
        first, second = (axes_of(kernel, loop) for loop in grid)
        return Blocks(first, second, tiles=True)
    points = (*(a for loop in grid for a in axes_of(kernel, loop)), *kernel.summed)
    still = frozenset(s for loop in grid if loop.step == 1 for s in loop.axes)
    return Blocks(points, kernel.inner, still, in_one_step(tiled))


class Flat:
    """A flattened group of axes: the symbol of their linear index, and the index of each axis as
    digits of it.

    Args:
        name: `i` or `r`, the first letter of the new symbol.
        axes: the axes, outermost first.
        others: symbols that the new one must differ from, besides those of the axes.
    """

    def __init__(self, name: str, axes: tuple[Axis, ...], others: Iterable[Sym] = ()) -> None:
        used = {a.symbol.name for a in axes} | {s.name for s in others}
        number = next(n for n in range(len(used) + 1) if f"{name}_{n}" not in used)
        self.symbol = Sym(f"{name}_{number}")
        self.digits: dict[Sym, Expr] = {}
        rest: Expr = self.symbol
        for k, a in enumerate(reversed(axes)):
            last = k == len(axes) - 1
            extent = (
                ONE if a.extent is ZERO else a.extent
            )  # the digits of an empty space are unused
            self.digits[a.symbol] = rest if last else rest % extent
            if not last:
                rest = rest // extent


def pairs_of(tiled: TiledKernel) -> dict[int, tuple[KernelStatement, KernelStatement]]:
    """Return the pairs of statements that are one access, by the identity of either."""
    bodies = ((tiled.kernel.stages[p.stage].body, p) for p in tiled.pairs)
    both = [(body[p.first], body[p.second]) for body, p in bodies]
    return {id(s): pair for pair in both for s in pair}


@define(eq=False)
class BlockDecisions:
    """A kernel's decisions, as printers of languages of blocks look them up."""

    tiled: TiledKernel
    blocks: Blocks
    flats: tuple[Flat, Flat]
    """The linear index of each dimension of a block."""
    reuses: dict[tuple[int, int], tuple[int, int]] = field(init=False)
    """For loads that reuse a value, the statement that loaded or stored it, by stage and
    position."""
    barriers: frozenset[tuple[int, int]] = field(init=False)
    """The stages and statements that are preceded by a barrier."""
    pairs: dict[int, tuple[KernelStatement, KernelStatement]] = field(init=False)
    """Pairs of statements that are one access, by the identity of either."""
    _forms: dict[Expr, Expr] = field(init=False)
    _plain: frozenset[Expr] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._forms = {f.index: f.written for f in self.tiled.forms}
        self._plain = frozenset(self.tiled.plain)
        self.pairs = pairs_of(self.tiled)
        self.barriers = frozenset((b.stage, b.statement) for b in self.tiled.barriers)
        self.reuses = {
            (r.stage, r.statement): (r.first_stage, r.first_statement) for r in self.tiled.reuses
        }

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self.tiled.kernel

    def plain(self, division: FloorDiv | Mod) -> bool:
        """Return whether a division that truncates is correct."""
        return division in self._plain

    def form(self, e: Expr) -> Expr:
        """Return the form in which an index is emitted, over linear indices or axes."""
        return self._forms.get(e, e)

    def along(self, e: Expr) -> tuple[bool, bool]:
        """Return along which dimensions of a block an index varies by its linear indices and
        axes."""
        symbols, (first, second) = self.form(e).free_symbols, self.flats
        moving = first.digits.keys() - self.blocks.still
        return (
            not symbols.isdisjoint((first.symbol, *moving)),
            not symbols.isdisjoint((second.symbol, *second.digits)),
        )

    def used(self, body: Iterable[AnyStatement]) -> set[Sym]:
        """Return the symbols used by the expressions of statements."""
        return {x for s in body for e in expressions(s) for x in self.form(e).free_symbols}


@frozen
class ProductAxes:
    """The axes of each loop of a matrix product."""

    batches: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    serial: tuple[Axis, ...]
    """Contracted axes that are iterated over one element at a time."""


def product_axes(tiled: TiledKernel, c: Contraction) -> ProductAxes:
    """Return the axes of each loop of a matrix product."""
    kernel = tiled.kernel
    rows, columns, depth = (axes_of(kernel, tiled.loops[n]) for n in (c.rows, c.columns, c.depth))
    others = [x for n, x in enumerate(tiled.loops) if n not in (c.rows, c.columns, c.depth)]
    batches = (a for x in others if x.kind is LoopKind.GRID for a in axes_of(kernel, x))
    serial = (a for x in others if x.kind is LoopKind.LOOP for a in axes_of(kernel, x))
    return ProductAxes(tuple(batches), rows, columns, depth, tuple(serial))


@frozen(eq=False)
class ProductIndices:
    """The flattened groups of axes of a matrix product."""

    rows: Flat
    columns: Flat
    batches: Flat
    serial: Flat
    depth: Flat
    right_depth: Flat
    """The depth of the right factor, which is the first dimension of its blocks."""
    right_symbols: dict[Sym, Expr]
    """The symbols that replace those of the depth axes in the right factor."""


def product_indices(axes: ProductAxes) -> ProductIndices:
    """Return the flattened groups of the axes of a matrix product."""
    right_symbols: dict[Sym, Expr] = {a.symbol: Sym(f"r_k{n}") for n, a in enumerate(axes.depth)}
    rows = Flat("i", axes.rows)
    columns = Flat("i", axes.columns, (rows.symbol,))
    batches = Flat("i", axes.batches, (rows.symbol, columns.symbol))
    serial = Flat("r", axes.serial)
    depth = Flat("r", axes.depth, (serial.symbol,))
    renewed = tuple(Axis(Sym(f"r_k{n}"), a.extent) for n, a in enumerate(axes.depth))
    right_depth = Flat("r", renewed, (serial.symbol, depth.symbol))
    return ProductIndices(rows, columns, batches, serial, depth, right_depth, right_symbols)


@frozen(eq=False)
class Factor:
    """A factor of a matrix product."""

    body: tuple[AnyStatement, ...]
    """The statements that compute it."""
    value: str
    dtype: DType
    loaded: bool
    """Whether it is a load, whose elements out of bounds are 0."""


def factors_of(kernel: Kernel, p: Product, right_symbols: dict[Sym, Expr]) -> tuple[Factor, Factor]:
    """Return the factors of a product, with the symbols of the right one replaced."""
    body = next(stage.body for stage in kernel.stages if stage.level is Level.INNER)
    left, right = needed_for(body, p.left), needed_for(body, p.right)
    replaced = tuple(renamed(s, {}, right_symbols) for s in right)
    return (
        Factor(left, p.left, p.dtype, isinstance(left[-1], Load)),
        Factor(replaced, p.right, p.dtype, isinstance(right[-1], Load)),
    )


def pair_offset(tiled: TiledKernel, written: Expr) -> int | None:
    """Return the constant that a rewritten index adds to twice the linear index of a point, or None
    for any other index."""
    position = Flat("i", blocks_of(tiled).first).symbol
    rest = written - 2 * position
    return rest.value if isinstance(rest, Const) else None


def block_refusal(tiled: TiledKernel) -> str | None:
    """Return why a language of blocks refuses a kernel: decisions it does not support, or None.
    `block_pipeline` only makes supported decisions."""
    if tiled.threads or tiled.transposed or tiled.prefetches or tiled.cleared:
        return "threads, transposed loads, prefetches or cleared buffers"
    if not _in_points(tiled):
        return "pairs that are not at twice the index of a point"
    product = tiled.contraction is not None
    whole = in_one_step(tiled)
    if tiled.kernel.totals and not whole:
        return "sums over rows that are not processed whole"
    method = Method.MATRIX if product else Method.AT_ONCE if whole else Method.ACCUMULATE
    for r in tiled.reductions:
        if r != Reduction(r.result, method, group=r.group, apart=r.apart, fused=r.fused):
            return f"a method other than plain {method.value} for {r.result}"
    nest = tuple((loop.kind, loop.step) for loop in tiled.loops)
    if nest not in (_PRODUCTS if product else _NESTS):
        return "this loop nest"
    if not product and nest[:2] == ((_GRID, 1), _POINTS):
        extent = axes_of(tiled.kernel, tiled.loops[1])[-1].extent
        steps = steps_of(tiled, tiled.loops[1])
        if not isinstance(extent, Const) or any(extent.value % step for step in steps):
            return f"blocks of {steps} points that exceed an axis of {extent!r}"
    return None


def _in_points(tiled: TiledKernel) -> bool:
    forms = {f.index: f.written for f in tiled.forms}
    for p in tiled.pairs:
        first = tiled.kernel.stages[p.stage].body[p.first]
        assert isinstance(first, Load | Store)
        written = forms.get(first.index, first.index)
        if blocks_of(tiled).second or pair_offset(tiled, written) is None:
            return False
    return True
