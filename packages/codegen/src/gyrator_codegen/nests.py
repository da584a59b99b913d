"""The loop nest of a kernel for vector machines, by the role of each loop."""

from gyrator_codegen.analysis import static
from gyrator_codegen.packing import PACKED, packs
from gyrator_ir.body.nodes import Axis, Load, Reduce
from gyrator_ir.define import frozen
from gyrator_ir.expr import Expr, Sym, ceildiv
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Loop, LoopKind, Method, Product, TiledKernel
from gyrator_ir.types import DType

_WORD = 4  # bytes
_AVX2_LANES = 8  # of 16 registers; other instruction sets have 32
_DOT_ROWS = 6


@frozen
class Nest:
    """The loops of a kernel, each over one axis, by role."""

    grid: tuple[Loop, ...]
    vectors: Loop
    """The loop whose steps are vectors."""
    axis: Axis
    """The axis of the vectors."""
    lanes: int
    """Elements of a vector."""
    across: bool
    """Whether vectors run along points, so that the lanes of a vector are different points."""
    columns: bool
    """Whether loops over inner axes enclose the vector loop, so that all points of a unit are
    reduced together, row by row."""

    @property
    def symbol(self) -> Sym:
        """The symbol of the vectors' axis."""
        return self.axis.symbol

    @property
    def rows(self) -> tuple[Loop, ...]:
        """The grid loops over axes other than that of the vectors."""
        return tuple(x for x in self.grid if x.axes[0] is not self.symbol)

    @property
    def grid_step(self) -> int:
        """The number of points along the vectors in a unit of work, if vectors run along points."""
        return settled(next(x.step for x in self.grid if x.axes[0] is self.symbol))


def nest(tiled: TiledKernel) -> Nest | None:
    """Return the loops of a kernel by role, or None if it has no loops.

    If there are loops over points below the grid, vectors run along the axis of the first one, else
    along that of the innermost loop. Those of the results of a matrix product run along columns.
    """
    if not tiled.loops:
        return None
    points = {a.symbol for a in tiled.kernel.axes}
    grid = tuple(x for x in tiled.loops if x.kind is LoopKind.GRID)
    below = tiled.loops[len(grid) :]
    first = next((n for n, x in enumerate(below) if x.axes[0] in points), None)
    if first is not None and tiled.contraction:
        first += 1  # the loop of row blocks precedes that of columns
    vectors = tiled.loops[-1] if first is None else below[first]
    axis = axis_of(tiled.kernel, vectors.axes[0])
    return Nest(grid, vectors, axis, settled(vectors.step), first is not None, bool(first))


def vector_refusal(tiled: TiledKernel, lanes: int) -> str | None:
    """Return why a language with vectors of `lanes` refuses a kernel: decisions that it does not
    support, or None. `vector_pipeline` only makes supported decisions."""
    if tiled.choices or tiled.pipelined or tiled.replicated or tiled.wait:
        return "choices, pipelines, replicated loads or waits"
    if tiled.index is not DType.I64:
        return f"indices in {tiled.index.value}"
    if any(len(x.axes) != 1 or isinstance(x.step, str) for x in tiled.loops):
        return "loops over several axes, or steps that are choices"
    if tiled.contraction:
        return _contraction_refusal(tiled, lanes)
    loops = nest(tiled)
    if loops is None:
        return None
    packed = 1 < lanes < loops.lanes == PACKED and packs(tiled.kernel, loops.symbol)
    if loops.lanes != lanes and (loops.across or loops.lanes > 1) and not packed:
        return f"vectors of {loops.lanes} lanes on a processor with {lanes}"
    if [x.axes for x in tiled.loops if x.kind is LoopKind.LOOP] not in _orders(tiled, loops):
        return "this order of loops"
    cut = {loops.symbol, *(t.along for t in tiled.transposed)}
    if any(x.step != 1 for x in tiled.loops if x.axes[0] not in cut):
        return "steps along axes other than those of vectors and transposed loads"
    points = [a.symbol for a in tiled.kernel.axes]
    if len(loops.grid) != len(points) or {x.axes[0] for x in loops.grid} != set(points):
        return "axes of points without a grid loop"
    if tiled.fissions and not (loops.across and (loops.columns or not tiled.kernel.inner)):
        return "fission of loops that are not over points only"
    return _reduction_refusal(tiled, loops)


def is_dots(product: Product) -> bool:
    """Return whether results are dot products of vectors along depth, of factors that are not
    packed."""
    return product.direct and product.along[0] is product.along[1]


def tile_columns(lanes: int, dtype: DType, dots: bool = False) -> int:
    """Return the columns of a register tile: two vectors of 32-bit elements, or one of 64-bit
    elements, which is two registers; three vectors if results are dot products of vectors."""
    if dots:
        return 3 * lanes
    return lanes if dtype.size > _WORD else 2 * lanes


def fits_registers(rows: int, lanes: int, dots: bool = False) -> bool:
    """Return whether register tiles may have this number of rows.

    A row is two registers, and all but four registers are accumulators; panels of rows are stored
    in vectors. Dot products have fewer columns at once.
    """
    if dots:
        return rows <= _DOT_ROWS
    accumulators = 12 if lanes == _AVX2_LANES else 28
    return 2 * rows <= accumulators and (rows < lanes or not rows % lanes)


def _contraction_refusal(tiled: TiledKernel, lanes: int) -> str | None:
    assert tiled.contraction is not None
    product = tiled.contraction.products[0]
    *_, columns, rows = (settled(x.step) for x in tiled.loops)
    if lanes == 1 or not product.along:
        return "contractions without panels"
    dots = is_dots(product)
    if columns != tile_columns(lanes, product.dtype, dots) or not fits_registers(rows, lanes, dots):
        return f"register tiles of {rows} by {columns}"
    return None


def _reduction_refusal(tiled: TiledKernel, loops: Nest) -> str | None:
    inner = tiled.kernel.inner
    row = static(inner[0].extent) if len(inner) == 1 else None
    recorded = iter(tiled.reductions)
    for stage in tiled.kernel.stages:
        loads = {s.name for s in stage.body if isinstance(s, Load)}
        pairs = [(s, next(recorded)) for s in stage.body if isinstance(s, Reduce)]
        unrolls = {settled(r.unroll) for _, r in pairs}
        if len(unrolls) > 1 or any(n & (n - 1) for n in unrolls):
            return "different unroll factors in a stage, or ones that are not powers of two"
        for s, r in pairs:
            if r.method not in (Method.ACCUMULATE, Method.TWO_PASS):
                return "reductions at once or by matrix units"
            if r.method is Method.TWO_PASS and (loops.across or loops.lanes == 1):
                return "two passes that are not along vectors"
            if r.compensated:
                return "compensated sums"
            if r.keep and (row is None or row > settled(r.block)):
                return "kept values of a part of a row"
            if r.reload and s.args[0] not in loads:
                return "reloading of computed values"
    return None


def _orders(tiled: TiledKernel, loops: Nest) -> list[list[tuple[Sym, ...]]]:
    """Return the supported orders of the loops below the grid."""
    symbols = {a.symbol for a in tiled.kernel.inner}
    inner = [x.axes for x in tiled.loops if x.axes[0] in symbols]
    if len(inner) != len(symbols):
        return []
    if not loops.across:
        return [inner]
    vectors = loops.vectors.axes
    if tiled.transposed:
        return [[vectors, (tiled.transposed[0].along,)]]
    return [[vectors, *inner], [*inner, vectors]]


def axis_of(kernel: Kernel, symbol: Sym) -> Axis:
    """Return the axis of a symbol."""
    return next(a for a in kernel.axes + kernel.inner if a.symbol is symbol)


def steps(kernel: Kernel, loop: Loop) -> Expr:
    """Return the number of steps of a loop over a whole axis."""
    extent = axis_of(kernel, loop.axes[0]).extent
    return extent if loop.step == 1 else ceildiv(extent, settled(loop.step))


def grid_loop(symbol: Sym, step: int = 1) -> Loop:
    """Return a loop of parallel units."""
    return Loop(LoopKind.GRID, (symbol,), step)


def plain_loop(symbol: Sym, step: int = 1) -> Loop:
    """Return a sequential loop."""
    return Loop(LoopKind.LOOP, (symbol,), step)
