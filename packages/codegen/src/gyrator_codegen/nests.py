"""What passes and printers for vector machines ask about a kernel's loops."""

from attrs import frozen

from gyrator_codegen.analysis import static
from gyrator_ir.body.nodes import Axis, Load, Reduce
from gyrator_ir.expr import Expr, Sym, ceildiv
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Loop, LoopKind, Method, TiledKernel
from gyrator_ir.types import DType


@frozen
class Nest:
    """The loops of a kernel, each over one axis, by what they are for."""

    grid: tuple[Loop, ...]
    vectors: Loop
    """The loop whose steps are vectors."""
    axis: Axis
    """What it walks."""
    lanes: int
    """Elements of a vector."""
    across: bool
    """Vectors run along points: the lanes of a vector are different points."""
    columns: bool
    """Loops over inner axes stand around that of the vectors: all points of a unit go through a
    reduction together, row by row."""

    @property
    def symbol(self) -> Sym:
        """That of the vectors' axis."""
        return self.axis.symbol

    @property
    def rows(self) -> tuple[Loop, ...]:
        """The grid loops over other axes than that of the vectors."""
        return tuple(x for x in self.grid if x.axes[0] is not self.symbol)

    @property
    def stretch(self) -> int:
        """How many points along the vectors are a unit of work, where they run along points."""
        return settled(next(x.step for x in self.grid if x.axes[0] is self.symbol))


def nest(tiled: TiledKernel) -> Nest | None:
    """Return the loops of a kernel by what they are for; None for one that has none.

    Where loops over points stand below the grid, vectors run along the axis of the first of them;
    else along that of the innermost loop.
    """
    if not tiled.loops:
        return None
    points = {a.symbol for a in tiled.kernel.axes}
    grid = tuple(x for x in tiled.loops if x.kind is LoopKind.GRID)
    below = tiled.loops[len(grid) :]
    place = next((n for n, x in enumerate(below) if x.axes[0] in points), None)
    vectors = tiled.loops[-1] if place is None else below[place]
    axis = axis_of(tiled.kernel, vectors.axes[0])
    return Nest(grid, vectors, axis, settled(vectors.step), place is not None, bool(place))


def unfit(tiled: TiledKernel, lanes: int) -> str | None:
    """Return what a language of vectors of `lanes` can't follow in a kernel's decisions, or None:
    what `vector_pipeline` never decides."""
    if tiled.contraction or tiled.choices or tiled.pipelined or tiled.replicated:
        return "contractions, choices, pipelines or replicated loads"
    if tiled.index is not DType.I64:
        return f"indices in {tiled.index.value}"
    if any(len(x.axes) != 1 or isinstance(x.step, str) for x in tiled.loops):
        return "several axes as one loop, or steps that are chosen later"
    loops = nest(tiled)
    if loops is None:
        return None
    if loops.lanes != lanes and (loops.across or loops.lanes > 1):
        return f"vectors of {loops.lanes} where the processor's have {lanes}"
    if [x.axes for x in tiled.loops if x.kind is LoopKind.LOOP] not in _orders(tiled, loops):
        return "loops in this order"
    cut = {loops.symbol, *(t.along for t in tiled.transposed)}
    if any(x.step != 1 for x in tiled.loops if x.axes[0] not in cut):
        return "steps along other axes than those of vectors and of transposed loads"
    points = [a.symbol for a in tiled.kernel.axes]
    if len(loops.grid) != len(points) or {x.axes[0] for x in loops.grid} != set(points):
        return "points without a grid loop of their own"
    return _unfit_reductions(tiled, loops)


def _unfit_reductions(tiled: TiledKernel, loops: Nest) -> str | None:
    inner = tiled.kernel.inner
    row = static(inner[0].extent) if len(inner) == 1 else None
    recorded = iter(tiled.reductions)
    for stage in tiled.kernel.stages:
        loads = {s.name for s in stage.body if isinstance(s, Load)}
        here = [(s, next(recorded)) for s in stage.body if isinstance(s, Reduce)]
        unrolls = {settled(r.unroll) for _, r in here}
        if len(unrolls) > 1 or any(n & (n - 1) for n in unrolls):
            return "reductions of a stage that are unrolled differently, or by no power of two"
        for s, r in here:
            if r.method not in (Method.ACCUMULATE, Method.TWO_PASS):
                return "reductions at once or by matrix units"
            if r.method is Method.TWO_PASS and (loops.across or loops.lanes == 1):
                return "two passes but along vectors"
            if r.keep and (row is None or row > settled(r.block)):
                return "values that are kept of a part of a row"
            if r.reload and s.args[0] not in loads:
                return "computed values that are loaded again"
    return None


def _orders(tiled: TiledKernel, loops: Nest) -> list[list[tuple[Sym, ...]]]:
    """Return the orders of loops below the grid that are known."""
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
    """Return how many steps a loop over a whole axis takes."""
    extent = axis_of(kernel, loop.axes[0]).extent
    return extent if loop.step == 1 else ceildiv(extent, settled(loop.step))


def grid_loop(symbol: Sym, step: int = 1) -> Loop:
    """Return a loop of parallel units."""
    return Loop(LoopKind.GRID, (symbol,), step)


def plain_loop(symbol: Sym, step: int = 1) -> Loop:
    """Return a loop of one step after another."""
    return Loop(LoopKind.LOOP, (symbol,), step)
