"""`map-contraction`: kernels that are products of matrices become blocks of rows and columns.

The rows, columns and batches of a fold of products are those of `gyrator_ir.loop.contraction`.
Blocks of rows by columns are units; each walks the axes that are summed over in blocks of its own.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.consecutive import consecutive
from gyrator_codegen.extents import guess
from gyrator_codegen.passes.rewriting import each_alone
from gyrator_ir.body.nodes import (
    Axis,
    Bind,
    IndexValue,
    Let,
    Load,
    Reduce,
    Store,
)
from gyrator_ir.body.nodes import Const as ConstValue
from gyrator_ir.body.rewrite import AnyStatement, defined, used
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level, Stage
from gyrator_ir.loop.contraction import needed_for, roles
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
    """Map folds of products to `matrix_units`, which take factors of those types.

    Products of fewer rows or columns than `side` leave most of a unit idle, and those of less
    `work` are done before a unit is fed. `group` blocks of rows share columns in the cache.

    Of several axes that are summed over, one of at least `depth` elements is walked in blocks, if
    blocks of 32 are no more than `waste` times as long as the axis, and the others one by one.
    """

    name: ClassVar[str] = "map-contraction"
    matrix_units: frozenset[DType] = frozenset()
    side: int = 4
    work: int = 1 << 12
    group: int = 8
    depth: int = 16
    waste: float = 1.34

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with its products of matrices mapped; groups launch none."""
        return each_alone(program, self._mapped)

    def _mapped(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        inside = [stage for stage in kernel.stages if stage.level is Level.INNER]
        if not kernel.inner or kernel.locals or len(inside) != 1:
            return tiled
        body = inside[0].body
        folds = [s for s in body if isinstance(s, Reduce)]
        if not folds or any(isinstance(s, Store) for s in body):
            return tiled
        sides = [roles(kernel.axes, body, s) for s in folds]
        found = sides[0]
        if found is None:
            return tiled
        products = [self._product(kernel, body, s) for s in folds]
        for n, side in enumerate(sides):
            product = products[n]
            if product is None or side is None:
                return tiled
            if (side.rows, side.columns) == (found.columns, found.rows):
                products[n] = _turned(product)
            elif side != found:
                return tiled
        chosen = [p for p in products if p is not None]
        if not self._worthwhile(found.rows, found.columns, kernel.inner, facts):
            return tiled
        rows, columns = found.rows, found.columns
        if _results_follow(rows, columns, kernel.stages):
            rows, columns = columns, rows
            chosen = [_turned(p) for p in chosen]
        left = _loads(body, (p.left for p in chosen))
        right = _loads(body, (p.right for p in chosen))
        depth = self._depth(kernel, body, chosen, facts)
        around = tuple(a for a in kernel.inner if a not in depth)
        loops = (
            *((_loop(LoopKind.GRID, found.batches, 1),) if found.batches else ()),
            _loop(LoopKind.GRID, _consecutive_last(rows, left), "XBLOCK"),
            _loop(LoopKind.GRID, _consecutive_last(columns, right), "RBLOCK"),
            _loop(LoopKind.LOOP, depth, "KBLOCK"),
            *((_loop(LoopKind.LOOP, around, 1),) if around else ()),
        )
        first = 1 if found.batches else 0
        return evolve(
            tiled,
            loops=loops,
            reductions=tuple(Reduction(s.names[0], Method.MATRIX) for s in folds),
            contraction=Contraction(tuple(chosen), first, first + 1, first + 2, self.group),
            choices=(
                Choice("XBLOCK", _SIDES),
                Choice("RBLOCK", _SIDES),
                Choice("KBLOCK", _DEPTHS),
            ),
        )

    def _product(
        self, kernel: Kernel, body: Sequence[KernelStatement], fold: Reduce
    ) -> Product | None:
        """Return the product with its factors as a matrix unit takes them, or None."""
        types = _types(kernel, body)
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
        if not (_stands_alone(body, left) and _stands_alone(body, right)):
            return None
        return Product(fold.names[0], left, right, dtype)

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
        """Return the axes that are walked in blocks, as one.

        One axis alone needs no division to be found in a block, and what depends on the others is
        the same for a whole block. The order of a sum is free.
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


def _turned(p: Product) -> Product:
    return Product(p.result, p.right, p.left, p.dtype)


def _types(kernel: Kernel, body: Iterable[KernelStatement]) -> dict[str, DType]:
    buffers = {b.name: b.dtype for b in kernel.parameters}
    types: dict[str, DType] = {}
    for s in body:
        if isinstance(s, Load):
            types[s.name] = buffers[s.buffer]
        elif isinstance(s, Let | ConstValue | IndexValue):
            types[s.name] = s.dtype
    return types


def _narrowed(body: Iterable[KernelStatement], name: str, types: dict[str, DType]) -> str:
    """Return the value that `name` is a widening cast of, if it is one."""
    for s in body:
        if isinstance(s, Let) and s.name == name and s.op == "cast":
            return s.args[0] if s.args[0] in types else name
    return name


def _stands_alone(body: Sequence[KernelStatement], value: str) -> bool:
    """Whether a value is computed from memory and indices alone, at each element."""
    needed = needed_for(body, value)
    names = {n for s in needed for n in defined(s)}
    return all(
        isinstance(s, Load | Let | ConstValue | IndexValue | Bind) and names.issuperset(used(s))
        for s in needed
    )


def _results_follow(rows: Sequence[Axis], columns: Sequence[Axis], stages: Iterable[Stage]) -> bool:
    """Whether results lie side by side along the rows' last axis, rather than the columns'."""
    score = 0
    for stage in stages:
        for s in stage.body:
            if stage.level is Level.OUTER and isinstance(s, Load | Store):
                weight = 4 if isinstance(s, Store) else 1
                score += weight * consecutive(s.index, columns[-1])
                score -= weight * consecutive(s.index, rows[-1])
    return score < 0


def _loads(body: Sequence[AnyStatement], values: Iterable[str]) -> list[Load]:
    return [s for value in values for s in needed_for(body, value) if isinstance(s, Load)]


def _consecutive_last(axes: tuple[Axis, ...], loads: Iterable[Load]) -> tuple[Axis, ...]:
    """Return axes with one last along which a factor is consecutive in memory, if there is one: a
    factor is read many times, and results are written once."""
    for a in reversed(axes):
        if any(consecutive(s.index, a) for s in loads):
            return (*(b for b in axes if b is not a), a)
    return axes
