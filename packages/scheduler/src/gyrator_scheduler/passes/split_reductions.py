"""`split-reductions`: a long fold at few points becomes many short ones, and a fold of those."""

from typing import ClassVar

from attrs import define, evolve, field, frozen

from gyrator_ir.body.nodes import (
    Axis,
    Let,
    Load,
    Reduce,
    ReduceKind,
    Statement,
    Store,
)
from gyrator_ir.body.nodes import Const as ConstValue
from gyrator_ir.body.rewrite import defined, renamed
from gyrator_ir.expr import ONE, Const, Expr, Sym, ceildiv, subs
from gyrator_ir.loop.contraction import roles
from gyrator_ir.loop.nodes import Buffer, LoopProgram, Operation, Pointwise, Reduction
from gyrator_ir.target import Heuristics
from gyrator_ir.types import DType
from gyrator_scheduler.fusion.axes import guess, space
from gyrator_scheduler.passes.cutting import (
    WORK_PER_CORE,
    Partial,
    neutral_outside,
    overhanging,
    row_major_place,
)
from gyrator_scheduler.passes.rewriting import each_subprogram

_STEPS = 16
"""Folding so many times the points abreast takes a core long enough to share it: it has few of each
point's elements in flight."""
_BLOCK = 64
"""Rows, and columns, of a small block of a product: smaller ones wait for memory."""
_LEAST = 16
"""Rows, or columns, that matrix units take at least."""
_PART = 512
"""Folding fewer products of a part takes no longer than storing it."""
_WHOLE = 2048
"""Folding fewer products takes no longer than another launch."""
MERGED_BY = {
    ReduceKind.SUM: ReduceKind.SUM,
    ReduceKind.PROD: ReduceKind.PROD,
    ReduceKind.MIN: ReduceKind.MIN,
    ReduceKind.MAX: ReduceKind.MAX,
    ReduceKind.ANY: ReduceKind.ANY,
    ReduceKind.ALL: ReduceKind.ALL,
    ReduceKind.XOR: ReduceKind.XOR,
    ReduceKind.DOT: ReduceKind.SUM,
}
"""The fold that merges parts of a fold with one result."""


@frozen
class SplitReductions:
    """Split folds of at least `extent` elements at fewer than `points` points, on a device with
    several `cores`. Arg-reductions stay whole.

    `by_device` has the numbers of a device type instead, and how many points lie `abreast`. On
    devices with `matrix_units`, which compute blocks of points, products of rows and columns are
    split where there are too few blocks.
    """

    name: ClassVar[str] = "split-reductions"
    points: int = 8
    extent: int = 8192
    cores: int = 1
    by_device: tuple[tuple[str, Heuristics], ...] = ()
    matrix_units: frozenset[str] = frozenset()

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with long folds in two steps."""
        program = each_subprogram(program, self.run)
        splitter = _Splitter(self, Partial(program.all_buffers))
        made: list[Operation] = []
        for op in program.operations:
            made.extend(splitter.split(op) if isinstance(op, Reduction) else (op,))
        new = tuple(splitter.partial.new)
        if not new:
            return program
        return evolve(program, operations=tuple(made), buffers=program.buffers + new)


@frozen
class _Plan:
    """How inner axes are cut.

    `apart` are taken whole, each element of them a part. `axis` is cut into `parts` of `length`,
    which cover it exactly if `whole`; None if `apart` makes parts enough. Each part is stored as
    one block if `first`.
    """

    apart: tuple[Axis, ...]
    axis: Axis | None
    parts: Expr = ONE
    length: Expr = ONE
    whole: bool = True
    first: bool = False

    @property
    def extents(self) -> tuple[Expr, ...]:
        """The extents of the axes that number the parts."""
        cut = () if self.axis is None else (self.parts,)
        return (*(a.extent for a in self.apart), *cut)


def _cut(apart: tuple[Axis, ...], axis: Axis, wanted: int, mergeable: bool) -> _Plan | None:
    """Return a plan that cuts `axis` into about `wanted` parts."""
    if isinstance(axis.extent, Const):
        size = axis.extent.value
        for parts in range(wanted, min(4 * wanted, size) + 1):
            if size % parts == 0:
                return _Plan(apart, axis, Const(parts), Const(size // parts))
    if not mergeable:
        return None
    return _Plan(apart, axis, Const(wanted), ceildiv(axis.extent, wanted), False)


def _apart(inner: tuple[Axis, ...], wanted: int, mergeable: bool) -> _Plan | None:
    """Return a plan where no axis alone has parts enough: the outermost are taken whole, until
    their product is about `wanted`, and the next one is cut if more are needed."""
    product = 1
    for n, axis in enumerate(inner):
        if not isinstance(axis.extent, Const) or product >= wanted:
            break
        size = axis.extent.value
        if n < len(inner) - 1 and product * size <= 2 * wanted:
            product *= size
            continue
        more = -(-wanted // product)
        plan = _cut(inner[:n], axis, more, mergeable) if size >= 2 * more else None
        if plan is not None:
            return plan
        break
    return _Plan(inner[:n], None) if product > 1 else None


def _across(op: Reduction) -> bool:
    """Whether what it folds is consecutive from point to point."""
    if not op.axes:
        return False
    last = op.axes[-1].symbol
    inner = {a.symbol for a in op.inner}
    return any(
        isinstance(s, Load)
        and last in s.index.free_symbols
        and not inner.isdisjoint(s.index.free_symbols)
        and subs(s.index, {last: last + 1}) - s.index is ONE
        for s in op.body
    )


def _scattered(plan: _Plan, op: Reduction, abreast: int) -> bool:
    """Whether parts are many runs of fewer elements than devices read at once."""
    last = plan.axis is op.inner[-1] and len(op.inner) > 1 and not _across(op)
    return last and isinstance(plan.length, Const) and plan.length.value < abreast


@define(eq=False)
class _Splitter:
    """Splits the reductions of one program and collects the buffers that takes."""

    options: SplitReductions
    partial: Partial

    def split(self, op: Reduction) -> list[Operation]:
        """Return the operations that replace a reduction."""
        plan = self._plan(op)
        if plan is None:
            return [op]
        extents = plan.extents
        cuts = tuple(Axis(Sym(f"i{len(op.axes) + 1000 + n}"), e) for n, e in enumerate(extents))
        step = Sym("r1000")
        # What lies side by side stays so: the last axis is the one that accesses follow.
        axes = (*cuts, *op.axes) if plan.first or _across(op) else (*op.axes, *cuts)
        inner = tuple(
            Axis(step, plan.length) if a is plan.axis else a
            for a in op.inner
            if a not in plan.apart
        )
        moved: dict[Sym, Expr] = {
            a.symbol: cut.symbol for a, cut in zip(plan.apart, cuts, strict=False)
        }
        if plan.axis is not None:
            moved[plan.axis.symbol] = cuts[-1].symbol * plan.length + step
        partial = [self.buffer(op, n, axes) for n in range(len(op.reduce.names))]
        body, args = _body(op, plan, moved)
        address = row_major_place(axes, partial[0])
        first = evolve(
            op,
            name=f"{op.name}_parts",
            axes=axes,
            inner=inner,
            body=tuple(body),
            reduce=evolve(op.reduce, args=args),
            stores=tuple(
                Store(b.name, address, n) for b, n in zip(partial, op.reduce.names, strict=True)
            ),
        )
        lines = tuple(Axis(Sym(f"r{n}"), e) for n, e in enumerate(extents))
        again: dict[Sym, Expr] = {
            cut.symbol: line.symbol for cut, line in zip(cuts, lines, strict=True)
        }
        reread = renamed(Load("", "", address), {}, again).index
        return [first, *self._merged(op, partial, lines, reread)]

    def _plan(self, op: Reduction) -> _Plan | None:
        sides = self._sides(op)
        if sides is not None:
            return self._product_plan(op, *sides)
        points, extent, cores, abreast = self._numbers(op)
        mergeable = op.reduce.kind in MERGED_BY
        if not mergeable and op.reduce.kind not in (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX):
            return None
        there = space(op.axes)
        if abreast > 1 and _across(op):
            there = -(-there // abreast)
            extent = min(extent, _STEPS * abreast)
        if cores < 2 or there >= min(points, 2 * cores) or space(op.inner) < extent:
            return None
        wanted = max(2, -(-WORK_PER_CORE * cores // max(there, 1)))
        long = [a for a in op.inner if guess(a.extent) >= 2 * wanted]
        if not long:
            return _apart(op.inner, wanted, mergeable)
        plans = [p for a in long if (p := _cut((), a, wanted, mergeable)) is not None]
        scattered = abreast > 1 and all(_scattered(p, op, abreast) for p in plans)
        apart = _apart(op.inner, wanted, mergeable) if scattered else None
        if not plans or apart is not None:
            return apart
        return next((p for p in plans if p.whole), plans[0])

    def _sides(self, op: Reduction) -> tuple[int, int] | None:
        """Return rows and columns of a product that matrix units compute, else None."""
        if self._device(op) not in self.options.matrix_units:
            return None
        found = roles(op.axes, op.body, op.reduce)
        if found is None:
            return None
        rows, columns = space(found.rows), space(found.columns)
        return (rows, columns) if min(rows, columns) >= _LEAST else None

    def _product_plan(self, op: Reduction, rows: int, columns: int) -> _Plan | None:
        """Cut the fold of a product so that its blocks are enough for all cores."""
        numbers = dict(self.options.by_device).get(self._device(op))
        if numbers is None:
            return None
        points = space(op.axes)
        blocks = max(points // (rows * columns), 1) * -(-rows // _BLOCK) * -(-columns // _BLOCK)
        each = points * op.reduce.dtype.size
        most = min(space(op.inner) // _PART, numbers.slack_bytes // max(each, 1))
        wanted = min(-(-2 * numbers.cores // blocks), most)
        if blocks >= numbers.cores or wanted < 2 or space(op.inner) < _WHOLE:
            return None
        best: tuple[int, Axis] | None = None
        for a in op.inner:
            if not isinstance(a.extent, Const):
                continue
            size = a.extent.value
            found = next((n for n in range(min(wanted, size), 1, -1) if size % n == 0), 1)
            if found > 1 and (best is None or found > best[0]):
                best = found, a
        if best is None:
            return None
        parts, axis = best
        length = axis.extent // parts
        if length is ONE:
            return _Plan((axis,), None, first=True)
        return _Plan((), axis, Const(parts), length, first=True)

    def _device(self, op: Reduction) -> str:
        return self.partial.buffers[op.stores[0].buffer].device.type

    def _numbers(self, op: Reduction) -> tuple[int, int, int, int]:
        """Return points, extent, cores and points abreast for an operation's device."""
        o = self.options
        device = self._device(op)
        for name, h in o.by_device:
            if name == device:
                limits = h.split_reduction_points, h.split_reduction_extent
                return (*limits, h.cores, h.adjacent_points)
        return o.points, o.extent, o.cores, 1

    def buffer(self, op: Reduction, n: int, axes: tuple[Axis, ...]) -> Buffer:
        """Return a new buffer with a place for every point of `axes`."""
        return self.partial.make(f"{op.name}_part{n}", op.reduce.dtype, op.stores[0].buffer, axes)

    def _merged(
        self, op: Reduction, partial: list[Buffer], lines: tuple[Axis, ...], address: Expr
    ) -> list[Operation]:
        """Return the operations that fold the parts."""
        loads = tuple(Load(f"a{n}", b.name, address) for n, b in enumerate(partial))
        dtype = op.reduce.dtype
        if op.reduce.kind in MERGED_BY:
            fold = Reduce(op.reduce.names, MERGED_BY[op.reduce.kind], ("a0",), dtype)
            return [evolve(op, inner=lines, body=loads, reduce=fold)]
        kept = _Kept(self, op, lines, loads)
        return kept.softmax() if op.reduce.kind is ReduceKind.ONLINE_SOFTMAX else kept.welford()


@define(eq=False)
class _Kept:
    """Merges of folds with several results: small reductions that fusion puts into one kernel."""

    splitter: _Splitter
    op: Reduction
    lines: tuple[Axis, ...]
    loads: tuple[Load, ...]
    made: list[Operation] = field(factory=list)

    def softmax(self) -> list[Operation]:
        """Merge (m, s) by m = max m_i and s = sum of s_i * exp(m_i - m)."""
        top = self._fold(ReduceKind.MAX, self.loads[:1], "a0")
        dtype = self.op.reduce.dtype
        lowest = ConstValue("lowest", float("-inf"), dtype)
        body: tuple[Statement, ...] = (
            *self.loads,
            self._at_points("m", top),
            Let("d", "sub", ("a0", "m"), dtype),
            Let("e", "exp", ("d",), dtype),
            Let("f", "mul", ("a1", "e"), dtype),
            lowest,
            Let("none", "eq", ("a0", "lowest"), DType.BOOL),
            Let("some", "ne", ("a0", "m"), DType.BOOL),
            Let("out", "bit_and", ("none", "some"), DType.BOOL),
            ConstValue("zero", 0.0, dtype),
            Let("g", "where", ("out", "zero", "f"), dtype),
        )
        total = self._fold(ReduceKind.SUM, body, "g")
        self._store((self._at_points("m", top), self._at_points("s", total)), ("m", "s"))
        return self.made

    def welford(self) -> list[Operation]:
        """Merge (mean, squares, count) as Chan, Golub and LeVeque (1979) do, over all parts."""
        dtype = self.op.reduce.dtype
        count = self._fold(ReduceKind.SUM, self.loads[2:], "a2")
        weighed = (self.loads[0], self.loads[2], Let("w", "mul", ("a0", "a2"), dtype))
        total = self._fold(ReduceKind.SUM, weighed, "w")
        mean: tuple[Statement, ...] = (
            self._at_points("n", count),
            self._at_points("t", total),
            Let("mean", "div", ("t", "n"), dtype),
        )
        body: tuple[Statement, ...] = (
            *self.loads,
            *mean,
            Let("d", "sub", ("a0", "mean"), dtype),
            Let("dd", "mul", ("d", "d"), dtype),
            Let("w", "mul", ("dd", "a2"), dtype),
            Let("q", "add", ("a1", "w"), dtype),
        )
        squares = self._fold(ReduceKind.SUM, body, "q")
        self._store((*mean, self._at_points("q", squares)), ("mean", "q", "n"))
        return self.made

    def _fold(self, kind: ReduceKind, body: tuple[Statement, ...], value: str) -> Buffer:
        op = self.op
        out = self.splitter.buffer(op, len(self.made) + 100, op.axes)
        fold = Reduce(("c",), kind, (value,), op.reduce.dtype)
        store = Store(out.name, self._place(out), "c")
        name = f"{op.name}_merge{len(self.made)}"
        self.made.append(Reduction(name, op.axes, self.lines, body, fold, (store,), op.origins))
        return out

    def _place(self, b: Buffer) -> Expr:
        return row_major_place(self.op.axes, b)

    def _at_points(self, name: str, b: Buffer) -> Load:
        return Load(name, b.name, self._place(b))

    def _store(self, body: tuple[Statement, ...], values: tuple[str, ...]) -> None:
        """Append the pointwise operation that stores the merged results."""
        names = dict(zip(self.op.reduce.names, values, strict=True))
        stores = tuple(renamed(s, names, {}) for s in self.op.stores)
        self.made.append(Pointwise(self.op.name, self.op.axes, (*body, *stores), self.op.origins))


def _body(
    op: Reduction, plan: _Plan, moved: dict[Sym, Expr]
) -> tuple[list[Statement], tuple[str, ...]]:
    """Return the body of the first step and what it folds, with what `moved` has in the place of
    symbols. Where the parts overhang, nothing is read and the fold's identity taken."""
    if plan.axis is None or plan.whole:
        return [renamed(s, {}, moved) for s in op.body], op.reduce.args
    taken = {n for s in op.body for n in defined(s)}
    axis = plan.axis
    body, inside = overhanging(op.body, moved, moved[axis.symbol], axis.extent, taken)
    kind, dtype = op.reduce.kind, op.reduce.dtype
    return body, neutral_outside(body, op.reduce.args, inside, kind, dtype, taken)
