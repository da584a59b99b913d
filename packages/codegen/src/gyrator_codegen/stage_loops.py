"""Queries of printers for vector machines: a kernel's decisions, the loops of a stage, and units of
work."""

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve

from gyrator_codegen.analysis import linear_position
from gyrator_codegen.language import index_checks
from gyrator_codegen.nests import Nest, axis_of, nest, steps
from gyrator_codegen.positions import pairs_of
from gyrator_codegen.reductions import Carried, carried
from gyrator_codegen.writer import Names
from gyrator_ir.body.nodes import (
    Axis,
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanStep,
    SortStep,
    Store,
)
from gyrator_ir.body.rewrite import defined, live, types_of, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ZERO, Expr, product_of
from gyrator_ir.expr import Const as Number
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import DRAWN, Access, IndexAccess, Method, Prefetch, TiledKernel
from gyrator_ir.types import DType

_UNIFORM = IndexAccess(ZERO, Access.UNIFORM)


class Decisions:
    """A kernel's decisions indexed by statement, and names for its text that are not `reserved`."""

    def __init__(self, tiled: TiledKernel, reserved: frozenset[str]) -> None:
        self.tiled = tiled
        self.kernel = kernel = tiled.kernel
        self.nest = nest(tiled)
        self.across = self.nest is not None and self.nest.across
        """Whether the lanes of a vector are different points."""
        self.storage = kernel.storage
        self.position = linear_position(kernel.inner)
        self.checks = index_checks(kernel)
        self.reductions = {r.result: r for r in tiled.reductions}
        self.rows = {x.name for x in kernel.locals} if self.across and self.loops.lanes > 1 else ()
        """Locals with a vector of points, rather than a value, at each address."""
        self.points = [s for g in kernel.stages if g.level is Level.OUTER for s in g.body]
        """The statements that run once per point."""
        self.statements = kernel.statements
        bound = {s.symbol.name for s in self.statements if isinstance(s, Bind)}
        named = (*(a.symbol for a in kernel.axes + kernel.inner), *kernel.sizes)
        self.symbols = bound | {symbol.name for symbol in named}
        """Names of all symbols that indices may contain."""
        self.names = Names(reserved | self.symbols)
        for name in (name for s in self.statements for name in defined(s)):
            self.names.stable(name)
        drawn = (s.name for s in self.statements if isinstance(s, Let) and s.op in DRAWN)
        self.drawn = {name: self.names.stable(f"{name}_drawn") for name in drawn}
        """Random numbers, which are generated in batches, with the names of their buffers."""
        self.pairs = pairs_of(tiled)
        """Pairs of statements that are one access, by the identity of either."""
        self._stored = {
            id(kernel.stages[u.stage].body[u.statement]): u.value for u in tiled.unrounded
        }
        self._ahead = frozenset(tiled.ahead)
        self._accesses = {a.index: a for a in tiled.accesses}

    @property
    def loops(self) -> Nest:
        """The loop nest of a kernel that has loops."""
        assert self.nest is not None
        return self.nest

    def access(self, e: Expr, *, lanes: bool = True) -> IndexAccess:
        """Return how an index varies across lanes, or that it is uniform for a scalar access."""
        return (self._accesses.get(e) or IndexAccess(e, Access.LANES)) if lanes else _UNIFORM

    def stored_value(self, s: Store) -> str:
        """Return the operand that a store is printed with, which the store may round."""
        return self._stored.get(id(s), s.value)

    def hoisted(
        self, body: Iterable[KernelStatement]
    ) -> tuple[list[KernelStatement], list[KernelStatement]]:
        """Return the statements of a body that are hoisted out of its loops, including constants,
        and the rest."""
        parts: tuple[list[KernelStatement], list[KernelStatement]] = [], []
        for s in body:
            names = (s.symbol.name,) if isinstance(s, Bind) else defined(s)
            parts[not isinstance(s, Const) and self._ahead.isdisjoint(names)].append(s)
        return parts

    @property
    def work(self) -> tuple[Expr, Expr, Expr]:
        """The number of work items distributed among threads, the number of units of each, and the
        total number of elements."""
        grid, threads = () if self.nest is None else self.nest.grid, self.tiled.threads
        counts = [steps(self.kernel, loop) for loop in grid]
        shared = 0 if threads is None else threads.loops
        elements = extent_of(self.kernel.axes + self.kernel.inner)
        return product_of(counts[:shared]), product_of(counts[shared:]), elements

    @property
    def single_range(self) -> bool:
        """Whether units are tiles along the vectors only, so that several are one range."""
        return self.across and not self.loops.columns and len(self.loops.grid) == 1

    @property
    def tiles_outside(self) -> bool:
        """Whether threads share tiles along the vectors only, each with all rows, so that a
        thread's tiles are one range in each row."""
        threads, grid = self.tiled.threads, () if self.nest is None else self.nest.grid
        return (
            self.across
            and not self.loops.columns
            and threads is not None
            and threads.loops == 1
            and len(grid) > 1
            and grid[0].axes[0] is self.loops.symbol
        )

    @property
    def tile(self) -> str | None:
        """A name for the index of a tile along vectors of points."""
        return f"{self.loops.symbol.name}_tile" if self.across else None

    @property
    def digits(self) -> dict[str, Expr]:
        """The indices of a unit of work, the last varying fastest, with their numbers of values. An
        index is named by its symbol, or `<symbol>_tile` for a loop with steps. A single tile along
        the vectors has no index."""
        counts: dict[str, Expr] = {}
        for loop in () if self.nest is None else self.nest.grid:
            symbol, count = loop.axes[0], steps(self.kernel, loop)
            vectors = self.across and symbol is self.loops.symbol
            single = isinstance(count, Number) and count.value <= 1
            if not (vectors and (single or self.tiles_outside)):
                plain = loop.step == 1 and not vectors
                counts[symbol.name if plain else f"{symbol.name}_tile"] = count
        return counts


@frozen
class StageLoops:
    """The loops of a stage over inner axes, and how they run."""

    body: Sequence[KernelStatement]
    axes: tuple[Axis, ...]
    """The inner axes in loop order."""
    vector: bool
    """Whether the innermost loop is the vector loop."""
    backwards: bool
    copies: int
    """Unroll factor."""
    block: int
    """Elements per block of the innermost loop; 0 if it is not blocked."""
    chain: int
    """Elements after which chains are flushed between two runs of the innermost loop; 0 if they are
    not flushed there."""
    in_order: bool
    """Whether each accumulator takes elements in the order of their positions."""
    extremes: Mapping[str, Sequence[str]]
    """The results that the accumulators of a reduction to a position have, by its result."""
    counts: bool
    """Whether a reduction needs the number of elements so far."""
    first: tuple[Prefetch, ...]
    """Prefetches of each vector."""
    second: tuple[Prefetch, ...]
    """Prefetches of each vector in the second of two passes."""
    carried: Mapping[str, tuple[Carried, ...]]
    """The loop-carried variables, by the first result of their reduction or scan."""
    chained: str
    """A name for the counter of a chain's elements."""
    count: str
    """A name for the number of elements so far, including the current one."""

    @property
    def axis(self) -> Axis:
        """The axis of the innermost loop."""
        return self.axes[-1]

    @property
    def ends(self) -> dict[str, DType]:
        """The results of reductions, with their types."""
        reduces = (s for s in self.body if isinstance(s, Reduce))
        return {n: t for s in reduces for n, t in zip(s.names, s.types, strict=True)}


def stage_loops(decisions: Decisions, number: int, body: Sequence[KernelStatement]) -> StageLoops:
    """Return the loops of stage `number`, which runs over the inner axes and has no sort. `body` is
    the part of the stage that runs inside of the loops."""
    kernel, tiled, loops = decisions.kernel, decisions.tiled, decisions.loops
    reduces = [s for s in body if isinstance(s, Reduce)]
    scans = [s for s in body if isinstance(s, ScanStep)]
    axes = kernel.inner
    if not scans:
        order = [x.axes[0] for x in tiled.loops]
        axes = tuple(axis_of(kernel, x) for x in order if x in {a.symbol for a in kernel.inner})
    vector = not scans and not loops.across and loops.lanes > 1
    recorded = [decisions.reductions[s.names[0]] for s in reduces]
    copies = max((settled(r.unroll) for r in recorded), default=1)
    block = max((settled(r.block) for r in recorded), default=0)
    chain = 0 if block else max((r.chain for r in recorded), default=0)
    if not loops.columns:
        chain *= copies * (loops.lanes if vector else 1)
    extremes: dict[str, list[str]] = {}
    for r in recorded:
        if r.of:
            extremes.setdefault(r.of, []).append(r.result)
    single = (s for s, r in zip(reduces, recorded, strict=True) if r.method is Method.ACCUMULATE)
    first, second = (
        tuple(p for p in tiled.prefetches if p.stage == number and p.second is late)
        for late in (False, True)
    )
    return StageLoops(
        body=body, axes=axes, vector=vector,
        backwards=bool(scans) and scans[0].reverse,
        copies=copies, block=block, chain=chain, in_order=axes == kernel.inner, extremes=extremes,
        counts=any(s.kind is ReduceKind.WELFORD for s in single),
        first=first, second=second,
        carried=_carried(decisions, body, vector, 1 if loops.columns else copies),
        chained=decisions.names.take("chain"), count=decisions.names.take("row"),
    )  # fmt: skip


def _carried(
    decisions: Decisions, body: Iterable[KernelStatement], vector: bool, copies: int
) -> dict[str, tuple[Carried, ...]]:
    """Return the loop-carried variables of a stage's reductions and scans, with names."""
    loops = decisions.loops
    lanes = vector or (loops.across and loops.lanes > 1)
    result: dict[str, tuple[Carried, ...]] = {}
    for s in body:
        if isinstance(s, Reduce | ScanStep):
            name, how = s.names[0], decisions.reductions.get(s.names[0])
            each = lanes and (how is None or how.method is not Method.TWO_PASS)
            result[name] = tuple(
                evolve(c, lanes=each, name=decisions.names.take(f"{name}_{c.role}"))
                for c in carried(s, how, copies)
            )
    return result


@frozen
class SortedStage:
    """A stage split at its sort. `before` computes the values to sort. `after` uses the sorted
    values, and repeats the statements of `before` that it needs."""

    before: tuple[KernelStatement, ...]
    step: SortStep
    after: tuple[KernelStatement, ...]


def sorted_stage(body: Sequence[KernelStatement]) -> SortedStage | None:
    """Split a body at its sort; return None for a body without one."""
    sorts = ((k, s) for k, s in enumerate(body) if isinstance(s, SortStep))
    position, step = next(sorts, (0, None))
    if step is None:
        return None
    before, after = tuple(body[:position]), tuple(body[position + 1 :])
    again = live(before, [name for s in after for name in used(s)])
    return SortedStage(before, step, (*(s for s in again if not isinstance(s, Store)), *after))


def later_values(kernel: Kernel, number: int, storage: dict[str, DType]) -> dict[str, DType]:
    """Return the values of stage `number` that later stages use, with their types, except constants
    and the results of scans and sorts."""
    later = {name for g in kernel.stages[number + 1 :] for s in g.body for name in used(s)}
    body = kernel.stages[number].body
    values = (types_of(s, storage) for s in body if isinstance(s, Load | Let | IndexValue | Reduce))
    return {name: dtype for types in values for name, dtype in types.items() if name in later}


def transposed_tile(decisions: Decisions) -> tuple[Axis, int, list[Load]]:
    """Return the axis along which loads are transposed, the length of a tile along it, and the
    loads."""
    symbol = decisions.tiled.transposed[0].along
    rows = settled(next(x.step for x in decisions.loops.grid if x.axes[0] is symbol))
    names = {t.load for t in decisions.tiled.transposed}
    loads = [s for s in decisions.statements if isinstance(s, Load) and s.name in names]
    return axis_of(decisions.kernel, symbol), rows, loads
