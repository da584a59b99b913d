"""`map-products`: tile matrix products for the registers and caches of cores.

The blocking is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(2008): a panel of the right factor stays in the L1 cache while a block of the left one is streamed
from L2. With few rows, packing would take as long as multiplying: factors that are contiguous along
the depth are multiplied by vectors along it, without packing.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product as pairs
from math import ceil, prod
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import guess, in_order, static
from gyrator_codegen.nests import fits_registers, grid_loop, plain_loop, tile_columns
from gyrator_codegen.passes.rewriting import each_of
from gyrator_codegen.products import dot_reductions, results_follow, stands_alone
from gyrator_ir.body.nodes import Axis, Bind, IndexValue, Let, Load, Reduce, Store, StoreMode
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Expr, ShapeFacts, Sym, expr, linear, mod, subs
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.tile.nodes import (
    Access,
    Contraction,
    IndexAccess,
    Loop,
    Method,
    Product,
    Reduction,
    Threads,
    TiledKernel,
    TileProgram,
)
from gyrator_ir.types import DType

_SUMS = (DType.F32, DType.F64, DType.I32)
_UNKNOWN = 512  # assumed for a size without a hint
_PACK = 0.7  # cost of packing an element
_ROWS = range(14, 3, -1)
_DOT_ROWS = range(4, 7)
_BUSY_ROWS = 4
"""The rows of a tile whose additions keep two units busy: a row is two, each of four cycles."""
_TILE, _WITHIN = (Sym(name) for name in ("i_tile", "i_within"))
"""A column as the number of its tile and its place within this."""


@frozen
class MapProducts:
    """Map dot reductions to register tiles over packed panels, if packing pays off.

    The pass runs after those that tile kernels as loops, and replaces their decisions except for
    those about single statements. Units are blocks of rows by columns, balanced among the cores.
    """

    name: ClassVar[str] = "map-products"
    lanes: int = 1
    """32-bit elements of a vector. If it is 1, products are not mapped."""
    cores: int = 1
    grain: int = 1 << 18
    """The minimum number of multiplications to use threads."""
    work: int = 1 << 12
    """The minimum number of multiplications to map."""
    rows: int = 4
    """The minimum number of rows."""
    few: int = 24
    """Up to this number of rows, a right factor that is contiguous along columns is not packed."""
    dot_rows: int = 64
    """Up to this number of rows, and that of vectors in the depth, factors that are both contiguous
    along depth are not packed: packing costs a time in proportion to 1 / rows for each
    multiplication, and the horizontal sums that replace it one in proportion to 1 / depth."""
    dot_depth: int = 16
    """The minimum depth of dot products, in vectors."""
    deep: int = 384
    """The maximum depth that is accumulated in registers before the sums are stored."""
    panel_deep: int = 192
    """The same if the right factor is stored in panels: sums of few products are more accurate, as
    in libraries, and nothing is packed again."""
    tall: int = 96
    """The maximum number of rows of a packed block of the left factor, which stays in L2. Panels of
    the right factor are in memory at once only if there are more rows."""
    most: int = 1024
    """The maximum number of rows and of columns of a unit, whose partial sums are in memory."""

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with its matrix products mapped. Kernels of groups are not mapped."""
        return program if self.lanes == 1 else each_of(program, TiledKernel, self._mapped)

    def _mapped(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, matrices = tiled.kernel, _matrices(tiled.kernel, facts, self.lanes)
        if matrices is None:
            return tiled
        row, column, depth = matrices.row, matrices.column, matrices.depth
        m, n, k = (guess(a.extent, facts, _UNKNOWN) for a in (row, column, depth))
        if m < self.rows or n < self.lanes or m * n * k < self.work:
            return tiled
        around = [a for a in kernel.axes if a not in (row, column)]
        many = prod(guess(a.extent, facts, _UNKNOWN) for a in around)
        sized = all(static(a.extent) is not None for a in (*kernel.axes, depth))
        cores = 1 if sized and many * m * n * k < self.grain else self.cores
        dots = self._are_dots(matrices, m, k)
        steps = (
            self._dot_steps(m, n, k, cores)
            if dots
            else self._steps(m, n, k, many, matrices.fold.dtype, cores, self._deep(matrices))
        )
        if static(depth.extent) is None:
            steps = evolve(steps, deep=max(steps.deep, self._deep(matrices)))
        units = many * ceil(m / steps.unit_rows) * ceil(n / steps.unit_columns)
        alone = cores == 1 or (sized and units <= 1)
        first = len(around)
        return TiledKernel(
            kernel,
            _loops(matrices, around, steps),
            (Reduction(matrices.fold.names[0], Method.MATRIX),),
            Contraction((self._product(matrices, m, dots),), first, first + 1, first + 2),
            Threads(0) if alone else Threads(first + 2, self.grain),
            accesses=matrices.accesses,
            unrounded=tiled.unrounded,
            exact=tiled.exact,
            truncated=tiled.truncated,
        )

    def _are_dots(self, matrices: "_Matrices", m: int, k: int) -> bool:
        """Return whether horizontal sums of vectors along depth take less time than packing."""
        few = m <= self.dot_rows and k >= max(m, self.dot_depth) * self.lanes
        return few and matrices.reads_along_depth

    def _deep(self, matrices: "_Matrices") -> int:
        """Return the maximum depth that is accumulated in registers."""
        return self.panel_deep if matrices.panels else self.deep

    def _product(self, matrices: "_Matrices", m: int, dots: bool) -> Product:
        fold, unpacked = matrices.fold, bool(matrices.panels) or m <= self.few
        direct = dots or (unpacked and matrices.right_lies_in_rows)
        return Product(fold.names[0], *matrices.factors, fold.dtype, matrices.along, direct)

    def _steps(
        self, m: int, n: int, k: int, many: int, dtype: DType, cores: int, most_deep: int
    ) -> "_Steps":
        """Return the loop steps, with the units of least time by a model: a tile costs one step for
        each row and depth, and packing `_PACK` for each element."""
        columns = tile_columns(self.lanes, dtype)
        heights = (r for r in _ROWS if fits_registers(r, self.lanes))
        rows = min(heights, key=lambda r: m // r * _cost(r) + (_cost(m % r) if m % r else 0))
        best: tuple[float, int, int] | None = None
        for across, down in pairs(_cuts(n, self.most, cores), _cuts(m, self.most, cores)):
            height, width = ceil(m / rows / down), ceil(n / columns / across)
            units = many * down * across
            packed = _PACK * (height * rows + width * columns)
            time = ceil(units / cores) * (height * width * rows + packed)
            if best is None or time < best[0]:
                best = time, height, width
        assert best is not None
        _, height, width = best
        tallest = min(self.tall // rows, height)
        tiles = min(range(tallest, tallest // 2, -1), key=lambda t: ceil(height / t) * t)
        blocks, tall = ceil(height / tiles), tiles * rows
        deep = ceil(k / ceil(k / most_deep)) if k else 1
        return _Steps(
            blocks * tall, width * columns, -(-deep // self.lanes) * self.lanes, tall, columns, rows
        )

    def _dot_steps(self, m: int, n: int, k: int, cores: int) -> "_Steps":
        """Return the loop steps of dot products: each core has all rows and a part of the
        columns."""
        columns = tile_columns(self.lanes, DType.F32, dots=True)
        heights = (r for r in _DOT_ROWS if fits_registers(r, self.lanes, dots=True))
        rows = min(heights, key=lambda r: ceil(m / r) * r)
        height, width = ceil(m / rows) * rows, ceil(n / columns / cores) * columns
        deep = ceil(k / self.lanes) * self.lanes
        return _Steps(height, width, deep, height, columns, rows)


@frozen
class _Steps:
    """The loop steps of a product."""

    unit_rows: int
    unit_columns: int
    deep: int
    tall: int
    columns: int
    rows: int


@frozen(kw_only=True)
class _Matrices:
    """A product of matrices: the sum `fold`, along `depth`, of products of two factors."""

    kernel: Kernel
    body: Sequence[KernelStatement]
    """The statements that compute the factors."""
    fold: Reduce
    factors: tuple[str, str]
    """The left one, with rows, and the right one, with columns."""
    row: Axis
    column: Axis
    depth: Axis
    panels: Collection[Expr]
    """The index of the right factor if it is stored in panels."""
    along: tuple[Sym, ...]
    """The axes along which the factors are read in vectors."""
    accesses: tuple[IndexAccess, ...]

    @property
    def reads_along_depth(self) -> bool:
        """Whether both factors are read along the depth as quickly as if they were packed."""
        depth = self.depth.symbol
        return (
            self.fold.dtype is DType.F32
            and self.along == (depth, depth)
            and all(_cheap(needed_for(self.body, f), self.accesses) for f in self.factors)
        )

    @property
    def right_lies_in_rows(self) -> bool:
        """Whether the right factor is contiguous along columns, with a constant stride along depth
        and the type of the sums."""
        types = {p.name: p.dtype for p in self.kernel.parameters}
        return any(
            types[s.buffer] in _SUMS
            and self.along[1] is not self.depth.symbol
            and IndexAccess(s.index, Access.UNIT) in self.accesses
            and linear(s.index, [self.depth.symbol]) is not None
            for s in self.body
            if isinstance(s, Load) and s.name == self.factors[1] and s.mask is None
        )


def _matrices(kernel: Kernel, facts: ShapeFacts, lanes: int) -> _Matrices | None:
    """Return the product that a kernel computes, or None if it is not one that can be mapped."""
    matched = dot_reductions(kernel)
    if matched is None or len(matched.reduces) > 1 or len(kernel.inner) > 1 or in_order(kernel):
        return None
    (fold,), (depth,) = matched.reduces, kernel.inner
    if fold.dtype not in _SUMS or not _plain(kernel, matched.body, fold):
        return None
    left, right = fold.args
    row, column = _longest(matched.roles.rows, facts), _longest(matched.roles.columns, facts)
    if results_follow((row,), (column,), kernel.stages):
        row, column, left, right = column, row, right, left
    width = tile_columns(lanes, fold.dtype)
    panels = _in_panels(matched.body, right, column, width, facts)
    read = _accesses(kernel, matched.body, (left, right), (row, column), depth, panels)
    if read is None:
        return None
    along, accesses = read
    return _Matrices(
        kernel=kernel,
        body=matched.body,
        fold=fold,
        factors=(left, right),
        row=row,
        column=column,
        depth=depth,
        panels=panels,
        along=along,
        accesses=accesses,
    )


def _loops(matrices: _Matrices, around: Sequence[Axis], steps: _Steps) -> tuple[Loop, ...]:
    """Return the loops over units on the grid, and those over blocks and register tiles."""
    row, column, depth = matrices.row.symbol, matrices.column.symbol, matrices.depth.symbol
    return (
        *(grid_loop(a.symbol) for a in around),
        grid_loop(row, steps.unit_rows),
        grid_loop(column, steps.unit_columns),
        plain_loop(depth, steps.deep),
        plain_loop(row, steps.tall),
        plain_loop(column, steps.columns),
        plain_loop(row, steps.rows),
    )


def _cost(rows: int) -> int:
    """Return the steps of a tile at each depth: one for each row, unless additions would wait for
    those before, and one for the columns."""
    return max(rows, _BUSY_ROWS) + 1


def _cuts(size: int, most: int, cores: int) -> Iterator[int]:
    """Return the candidate numbers of parts of a side."""
    least = max(ceil(size / most), 1)
    return iter(range(least, least + cores))


def _longest(axes: Sequence[Axis], facts: ShapeFacts) -> Axis:
    """Return the longest axis, which is tiled; the others become batch axes."""
    return max(reversed(axes), key=lambda a: guess(a.extent, facts, _UNKNOWN))


def _plain(kernel: Kernel, body: Sequence[KernelStatement], fold: Reduce) -> bool:
    """Return whether factors depend on memory and indices only, and results are plainly stored."""
    rest = [s for stage in kernel.stages if stage.level is Level.OUTER for s in stage.body]
    needed = {id(s) for name in fold.args for s in needed_for(body, name)}
    return (
        not any(isinstance(s, Bind) for s in (*body, *rest))
        and not any(isinstance(s, Store) and s.mode is not StoreMode.SET for s in rest)
        and all(stands_alone(body, name) for name in fold.args)
        and all(id(s) in needed or s is fold for s in body)
    )


def _cheap(body: Sequence[KernelStatement], accesses: Sequence[IndexAccess]) -> bool:
    """Return whether a factor is a contiguous load or a cast of one, so that it is read as quickly
    as if it were packed."""
    load, *casts = body
    return (
        isinstance(load, Load)
        and load.mask is None
        and IndexAccess(load.index, Access.UNIT) in accesses
        and len(casts) <= 1
        and all(isinstance(s, Let) and s.op == "cast" for s in casts)
    )


def _in_panels(
    body: Sequence[KernelStatement], factor: str, column: Axis, width: int, facts: ShapeFacts
) -> frozenset[Expr]:
    """Return the index of the right factor if this is stored in panels, so that the columns of each
    register tile are contiguous; else nothing."""
    load = next((s for s in body if isinstance(s, Load) and s.name == factor), None)
    whole = mod(column.extent, expr(width)) is ZERO
    if load is None or not whole or linear(load.index, [column.symbol]):
        return frozenset()
    within = facts.with_ranges({_TILE: column.extent // width, _WITHIN: width})
    index = within.simplify(subs(load.index, {column.symbol: _TILE * width + _WITHIN}))
    parts = linear(index, [_WITHIN])
    return frozenset([load.index]) if parts and parts[0][_WITHIN] is ONE else frozenset()


def _accesses(
    kernel: Kernel,
    body: Sequence[KernelStatement],
    factors: Sequence[str],
    points: Sequence[Axis],
    depth: Axis,
    panels: Collection[Expr],
) -> tuple[tuple[Sym, ...], tuple[IndexAccess, ...]] | None:
    """Return the axes along which the factors are read in vectors, and the accesses of all indices;
    None if an index would have two kinds of access. `panels` are contiguous within tiles."""
    accesses: dict[Expr, IndexAccess] = {}
    rest = [s for stage in kernel.stages if stage.level is Level.OUTER for s in stage.body]
    along = []
    for e in _indices(rest):
        accesses[e] = _access(e, points[1].symbol)
    for name, point in zip(factors, points, strict=True):
        indices = list(_indices(needed_for(body, name)))
        ways = [{e: _access(e, a.symbol) for e in indices} for a in (point, depth)]
        ways[0] |= {e: IndexAccess(e, Access.UNIT) for e in indices if e in panels}
        fit = [w for w in ways if all(accesses.get(e, a) == a for e, a in w.items())]
        if not fit:
            return None
        best = max(fit, key=lambda w: sum(a.kind is Access.UNIT for a in w.values()))
        along.append((point if best is ways[0] else depth).symbol)
        accesses |= best
    return tuple(along), tuple(accesses.values())


def _indices(body: Iterable[KernelStatement]) -> Iterator[Expr]:
    for s in body:
        if isinstance(s, Load | Store):
            yield s.index
        elif isinstance(s, IndexValue):
            yield s.expr


def _access(e: Expr, symbol: Sym) -> IndexAccess:
    """Return the access of an index for a vector with any start."""
    parts = linear(e, [symbol])
    if parts is None:
        return IndexAccess(e, Access.LANES)
    slope = parts[0][symbol]
    if slope is ZERO:
        return IndexAccess(e, Access.UNIFORM)
    return IndexAccess(e, Access.UNIT) if slope is ONE else IndexAccess(e, Access.STRIDED, slope)
