"""Block shapes of matrix products, ranked by a model of a multiprocessor.

The time of a block is that of its multiplications, at a rate that depends on its shape, plus the
time to fill and drain the pipeline. A step loads `KBLOCK * (XBLOCK + RBLOCK)` elements for
`KBLOCK * XBLOCK * RBLOCK` multiplications, so narrow blocks wait for memory. If the number of
blocks is not a multiple of the number of multiprocessors, some are idle at the end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil

from gyrator_codegen.analysis import guess, power_of_two
from gyrator_codegen.lanes import VECTOR, consecutive
from gyrator_codegen.passes.blocks.ranked import Ranked
from gyrator_ir.body.nodes import Axis, Load
from gyrator_ir.define import frozen
from gyrator_ir.expr import ZERO, Add, Const, Expr, ShapeFacts, SymKind, subs
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.tile.loops import axes_of, extent_of
from gyrator_ir.tile.nodes import Contraction, TiledKernel
from gyrator_ir.types import DType

_MOST = 6  # maximum number of candidates per kernel
_DEPTHS = 2  # maximum number of candidates with the same rows and columns
_SPARE = 2 << 10  # bytes of shared memory that compilers use for barriers and reordering
_SHARED = 48 << 10  # bytes of shared memory if unknown
_LOADS = 24.0  # cost of loading an element, in multiplications
_LOOSE = 200.0  # the same for factors that are not loaded in whole vectors
_DRAIN = 3e6  # cost of filling and draining the pipeline, in multiplications
_PLAIN_DRAIN = 2e5  # the same without matrix units


@frozen
class _Shape:
    """`x` rows by `r` columns by `k` contracted elements."""

    x: int
    r: int
    k: int
    warps: int
    stages: int

    def values(self) -> tuple[int, ...]:
        """Return the values of the choices, in order."""
        return self.x, self.r, self.k, self.warps, self.stages


def product_shapes(tiled: TiledKernel, facts: ShapeFacts, cores: int, shared: int) -> Ranked:
    """Return ranked values of `XBLOCK`, `RBLOCK`, `KBLOCK`, `num_warps` and `num_stages`."""
    c = tiled.contraction
    assert c is not None
    kernel = tiled.kernel
    rows, columns, depth = (axes_of(kernel, tiled.loops[n]) for n in (c.rows, c.columns, c.depth))
    sizes = [max(guess(extent_of(axes), facts), 1) for axes in (rows, columns, depth)]
    batches = [a for a in kernel.axes if a not in rows and a not in columns]
    around = [a for a in kernel.inner if a not in depth]
    many, steps = (max(guess(extent_of(axes), facts), 1) for axes in (batches, around))
    loose = _loose(tiled, c, rows, columns, depth)
    plain = c.products[0].dtype is DType.F32 and not c.products[0].tf32
    shapes = list(_shapes(c, sizes, any(loose), plain, shared or _SHARED))
    loads = [_LOOSE if side else _LOADS for side in loose]
    deep = 32 if any(loose) else 64

    def price(shape: _Shape) -> float:
        blocks = many * ceil(sizes[0] / shape.x) * ceil(sizes[1] / shape.r)
        folded = steps * ceil(sizes[2] / shape.k) * shape.k
        rate = 1 / (1 + loads[0] / shape.r + loads[1] / shape.x)
        work = shape.x * shape.r * folded / rate + (_PLAIN_DRAIN if plain else _DRAIN)
        return (
            float(ceil(blocks / max(cores, 1)))
            * work
            * (1 + 0.02 * (deep / shape.k - 1))
            / float(shape.stages**0.1)
        )

    # Shapes that differ only in depth perform similarly, so measuring other blocks is worth more.
    counts: Counter[tuple[int, int]] = Counter()
    best: list[_Shape] = []
    for shape in sorted(shapes, key=price):
        if counts[shape.x, shape.r] < _DEPTHS:
            best.append(shape)
        counts[shape.x, shape.r] += 1
    names = ("XBLOCK", "RBLOCK", "KBLOCK", "num_warps", "num_stages")
    return Ranked(names, [s.values() for s in shapes], [s.values() for s in best[:_MOST]])


def _shapes(
    c: Contraction, sizes: list[int], loose: bool, plain: bool, shared: int
) -> Iterator[_Shape]:
    m, n, k = sizes
    size, count = c.products[0].dtype.size, len(c.products)
    lefts, rights = len({p.left for p in c.products}), len({p.right for p in c.products})
    depths = (16, 32) if plain else (32, 64, 128) if size > 1 else (64, 128)
    if loose:
        depths = depths[:2]  # factors that are not copied unchanged are kept in registers
    sides = (16, 32, 64, 128) if plain else (16, 32, 64, 128, 256)
    for x in sides:
        for r in sides:
            if x > max(power_of_two(m), 16) or r > max(power_of_two(n), 16):
                continue
            if x * r * count > (128 * 64 if plain else 128 * 256):
                continue
            warps = 8 if x * r * count >= 128 * 128 and x >= 128 else 4
            for depth in depths:
                if depth > max(power_of_two(k), depths[0]):
                    continue
                stage_bytes = depth * (x * lefts + r * rights) * size
                stages = min(4, (shared - _SPARE) // stage_bytes)
                if stages >= 1:
                    yield _Shape(x, r, depth, warps, stages)


def _loose(
    tiled: TiledKernel,
    c: Contraction,
    rows: tuple[Axis, ...],
    columns: tuple[Axis, ...],
    depth: tuple[Axis, ...],
) -> tuple[bool, bool]:
    """Return for each side whether some factor cannot be loaded in whole vectors."""
    body = next(stage.body for stage in tiled.kernel.stages if stage.level is Level.INNER)

    def side(factors: Iterable[tuple[str, DType]], axes: tuple[Axis, ...]) -> bool:
        return any(
            not _in_vectors(s.index, (axes, depth), VECTOR // dtype.size)
            for name, dtype in factors
            for s in needed_for(body, name)
            if isinstance(s, Load)
        )

    left = side([(p.left, p.dtype) for p in c.products], rows)
    return left, side([(p.right, p.dtype) for p in c.products], columns)


def _in_vectors(index: Expr, groups: Iterable[tuple[Axis, ...]], vector: int) -> bool:
    if any(x.kind in (SymKind.SIZE, SymKind.UNBACKED) for x in index.free_symbols):
        return True
    for group in groups:
        last = group[-1]
        if not consecutive(index, last):
            continue
        even = len(group) == 1 or _divides(vector, last.extent)
        if even and _divides(vector, subs(index, {last.symbol: ZERO})):
            return True
    return False


def _divides(number: int, e: Expr) -> bool:
    """Return whether all terms of an expression are multiples of a number."""
    if isinstance(e, Const):
        return e.value % number == 0
    if isinstance(e, Add):
        return e.const % number == 0 and all(c % number == 0 for _, c in e.terms)
    return number == 1
