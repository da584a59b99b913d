"""`map-contraction`: tile matrix products into blocks of rows and columns.

The rows, columns and batches of a dot reduction are those of `gyrator_ir.loop.contraction`. Blocks
of rows by columns are units of parallel work, each of which iterates over blocks of the contracted
axes.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import guess
from gyrator_codegen.lanes import consecutive
from gyrator_codegen.passes.rewriting import each_of
from gyrator_codegen.products import dot_reductions, results_follow, stands_alone
from gyrator_ir.body.nodes import Axis, IndexValue, Let, Load, Reduce
from gyrator_ir.body.rewrite import AnyStatement, types_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import (
    Choice,
    Contraction,
    Loop,
    LoopKind,
    Method,
    Product,
    Reduction,
    TiledKernel,
    TileProgram,
)
from gyrator_ir.types import DType

_SIDES = (16, 32, 64, 128, 256)
_DEPTHS = (16, 32, 64, 128)


@frozen
class MapContraction:
    """Map dot reductions to matrix units for the element types `matrix_units`.

    Products with fewer rows or columns than `side` would leave most of a unit idle, and those with
    less than `work` multiplications would finish before a unit is busy. `group` row blocks share
    columns in the cache. With `tf32`, factors in `f32` may be rounded to it.

    Of several contracted axes, one of at least `depth` elements is iterated over in blocks, if
    rounding it up to blocks of 32 makes it at most `waste` times as long, and the others one
    element at a time.
    """

    name: ClassVar[str] = "map-contraction"
    matrix_units: frozenset[DType] = frozenset()
    tf32: bool = False
    side: int = 4
    work: int = 1 << 12
    group: int = 8
    depth: int = 16
    waste: float = 1.34

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with its matrix products mapped. Kernels of groups are not mapped."""
        return each_of(program, TiledKernel, self._mapped)

    def _mapped(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        matched = dot_reductions(kernel)
        if matched is None:
            return tiled
        body, folds, axis_roles = matched.body, matched.reduces, matched.roles
        chosen: list[Product] = []
        for fold, swapped in zip(folds, matched.swapped, strict=True):
            product = self._product(kernel, body, fold)
            if product is None:
                return tiled
            chosen.append(_swapped(product) if swapped else product)
        if not self._worthwhile(axis_roles.rows, axis_roles.columns, kernel.inner, facts):
            return tiled
        rows, columns = axis_roles.rows, axis_roles.columns
        if results_follow(rows, columns, kernel.stages):
            rows, columns = columns, rows
            chosen = [_swapped(p) for p in chosen]
        left = _loads(body, (p.left for p in chosen))
        right = _loads(body, (p.right for p in chosen))
        depth = self._depth(kernel, body, chosen, facts)
        around = tuple(a for a in kernel.inner if a not in depth)
        loops = (
            *((_loop(LoopKind.GRID, axis_roles.batches, 1),) if axis_roles.batches else ()),
            _loop(LoopKind.GRID, _consecutive_last(rows, left), "XBLOCK"),
            _loop(LoopKind.GRID, _consecutive_last(columns, right), "RBLOCK"),
            _loop(LoopKind.LOOP, depth, "KBLOCK"),
            *((_loop(LoopKind.LOOP, around, 1),) if around else ()),
        )
        first = 1 if axis_roles.batches else 0
        return evolve(
            tiled,
            loops=loops,
            reductions=tuple(Reduction(s.names[0], Method.MATRIX) for s in folds),
            contraction=Contraction(tuple(chosen), first, first + 1, first + 2, self.group),
            choices=(Choice("XBLOCK", _SIDES), Choice("RBLOCK", _SIDES), Choice("KBLOCK", _DEPTHS)),
        )

    def _product(
        self, kernel: Kernel, body: Sequence[KernelStatement], fold: Reduce
    ) -> Product | None:
        """Return the product with factors of types that a matrix unit supports, or None."""
        storage = kernel.storage
        types = {name: dtype for s in body for name, dtype in types_of(s, storage).items()}
        if not types.keys() >= set(fold.args):
            return None
        factors = [_narrowed(body, name, types) for name in fold.args]
        if fold.dtype is DType.I32:
            if {types[n] for n in factors} != {DType.I8}:
                return None
        elif fold.dtype is DType.F32:
            kinds = {types[n] for n in factors}
            if len(kinds) != 1 or not kinds <= {DType.BF16, DType.F16, DType.F32}:
                factors = list(fold.args)
        else:
            return None
        left, right = factors
        dtype = types[left]
        if dtype not in self.matrix_units or dtype is not types[right]:
            return None
        if not (stands_alone(body, left) and stands_alone(body, right)):
            return None
        return Product(fold.names[0], left, right, dtype, tf32=self.tf32 and dtype is DType.F32)

    def _worthwhile(
        self,
        rows: Sequence[Axis],
        columns: Sequence[Axis],
        inner: Sequence[Axis],
        facts: ShapeFacts,
    ) -> bool:
        m, n, k = (guess(extent_of(axes), facts) for axes in (rows, columns, inner))
        return min(m, n) >= self.side and m * n * k >= self.work

    def _depth(
        self,
        kernel: Kernel,
        body: Sequence[KernelStatement],
        products: Iterable[Product],
        facts: ShapeFacts,
    ) -> tuple[Axis, ...]:
        """Return the axes to iterate over in blocks, flattened.

        With a single axis, its index needs no division, and values that depend only on the others
        are the same for a whole block. The order of summation is arbitrary.
        """
        if len(kernel.inner) == 1:
            return kernel.inner
        best: tuple[float, Axis] | None = None
        factors = [needed_for(body, name) for p in products for name in (p.left, p.right)]
        for a in kernel.inner:
            size = guess(a.extent, facts)
            if size < self.depth:
                continue
            waste = -(-size // 32) * 32 / size
            if waste > self.waste:
                continue
            units = sum(
                consecutive(s.index, a) for factor in factors for s in factor if isinstance(s, Load)
            )
            masks = any(
                isinstance(s, IndexValue) and a.symbol in s.expr.free_symbols
                for factor in factors
                for s in factor
            )
            score = min(size, 64) / waste * (1 + units) / (1 + masks)
            if best is None or score > best[0]:
                best = score, a
        return kernel.inner if best is None else (best[1],)


def _loop(kind: LoopKind, axes: Iterable[Axis], step: int | str) -> Loop:
    return Loop(kind, tuple(a.symbol for a in axes), step)


def _swapped(p: Product) -> Product:
    return evolve(p, left=p.right, right=p.left)


def _narrowed(body: Iterable[KernelStatement], name: str, types: dict[str, DType]) -> str:
    """Return the operand of a cast, or `name` itself if it is not a cast."""
    for s in body:
        if isinstance(s, Let) and s.name == name and s.op == "cast":
            return s.args[0] if s.args[0] in types else name
    return name


def _loads(body: Sequence[AnyStatement], values: Iterable[str]) -> list[Load]:
    return [s for value in values for s in needed_for(body, value) if isinstance(s, Load)]


def _consecutive_last(axes: tuple[Axis, ...], loads: Iterable[Load]) -> tuple[Axis, ...]:
    """Return the axes with one moved last along which a factor is contiguous, if there is one.

    Factors have precedence over results, because they are read many times.
    """
    for a in reversed(axes):
        if any(consecutive(s.index, a) for s in loads):
            return (*(b for b in axes if b is not a), a)
    return axes
