"""`split-reductions`: split long reductions with little parallelism into two steps."""

from collections.abc import Iterable
from math import isqrt
from typing import ClassVar

from attrs import evolve, field

from gyrator_ir.body.nodes import Axis, Let, Load, Reduce, ReduceKind, Statement, Store
from gyrator_ir.body.nodes import Const as ConstValue
from gyrator_ir.body.rewrite import defined, renamed
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import ONE, Const, Expr, Sym, ceildiv, product_of, stride_of, subs
from gyrator_ir.loop.contraction import roles
from gyrator_ir.loop.nodes import Buffer, LoopProgram, Operation, Pointwise, Reduction
from gyrator_ir.target import Heuristics
from gyrator_ir.types import DType
from gyrator_scheduler.fusion.axes import guess, space
from gyrator_scheduler.passes.rewriting import each_subprogram
from gyrator_scheduler.passes.splitting import (
    WORK_PER_CORE,
    PartBuffers,
    masked_body,
    row_major_address,
    with_identity,
)

_ADJACENT_STEPS = 16
"""Minimum number of steps from which a reduction over vectorised points is split: with adjacent
points, a core has few elements of each reduction in flight."""
_MIN_COLUMNS, _MIN_STRIDED = 4, 4096
"""Minimum number of columns per core, and of elements, to reduce columns before groups of them: a
strided run costs several times as much as a part of a vector, and merging the columns two more
launches."""
_BLOCK = 64
"""Rows and columns of a small block of a matrix product: smaller blocks are bound by memory."""
_MIN_SIDE = 16
"""Minimum number of rows and columns for matrix units."""
_MIN_PART = 512
"""Minimum reduction length of a part of a matrix product: storing a shorter one costs more."""
_MIN_ROW = 64
"""Minimum number of elements of a part on devices whose points are independent."""
_MIN_SPLIT = 2048
"""Minimum reduction length from which a matrix product is split: a shorter one costs less than
another launch."""
_MIN_TOTAL = 8
"""Minimum number of rows that a part of a sum of columns adds up."""
_LONG_ROW, _PARTS = 4096, 4
"""Length of a row that fills a core, and the maximum number of parts of shorter rows per core."""
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
"""The reduction that merges the parts of a reduction with one result."""
_EXACT = (ReduceKind.MIN, ReduceKind.MAX, ReduceKind.ANY, ReduceKind.ALL)
"""Reductions of floats that do not round."""


@frozen
class SplitReductions:
    """Split reductions of at least `extent` elements with fewer than `points` parallel iterations,
    on a device with several `cores`. Arg-reductions are not split.

    `by_device` overrides these numbers for a device type, and adds the number of points to keep
    adjacent. On devices that process adjacent points together, parts have at least `part` elements:
    merging more of them takes longer than reducing their elements. On devices with `matrix_units`,
    matrix products are split if they have too few output blocks. With `exact`, reductions that
    round at each step are not split.

    A reduction of all elements of what a reduction of rows produced, such as the sum of a softmax,
    is split into these rows, on any number of cores: both fit in one kernel. On devices whose
    kernels of rows also sum columns (`Heuristics.total_elements`), sums over rows that another
    reduction reads or produces are split into a part or a few per core. On devices that process
    vectors of columns (`Heuristics.column_parts`), a reduction of short runs is split into its
    columns.
    """

    name: ClassVar[str] = "split-reductions"
    points: int = 8
    extent: int = 8192
    cores: int = 1
    part: int = 2048
    by_device: tuple[tuple[str, Heuristics], ...] = ()
    matrix_units: frozenset[str] = frozenset()
    exact: bool = False

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with long reductions split into two steps."""
        program = each_subprogram(program, self.run)
        splitter = _Splitter(self, PartBuffers(program.all_buffers))
        for op in program.operations:
            if isinstance(op, Reduction):
                splitter.record_operands(op)
        operations: list[Operation] = []
        for op in program.operations:
            new = splitter.split(op) if isinstance(op, Reduction) else [op]
            if len(new) == 1:
                splitter.record_rows(op)
            operations.extend(new)
        parts = tuple(splitter.part_buffers.new)
        if not parts:
            return program
        return evolve(program, operations=tuple(operations), buffers=program.buffers + parts)


@frozen
class _Plan:
    """How the inner axes are split.

    Every element of the `whole_axes` is a part. `axis` is split into `parts` of `length` elements,
    which cover it exactly if `exact`; it is None if `whole_axes` gives enough parts. With
    `parts_first`, each part is stored as one block.
    """

    whole_axes: tuple[Axis, ...]
    axis: Axis | None
    parts: Expr = ONE
    length: Expr = ONE
    exact: bool = True
    parts_first: bool = False

    @property
    def extents(self) -> tuple[Expr, ...]:
        """The extents of the axes over the parts."""
        cut = () if self.axis is None else (self.parts,)
        return (*(a.extent for a in self.whole_axes), *cut)


def _plan_split(
    whole_axes: tuple[Axis, ...], axis: Axis, target: int, mergeable: bool
) -> _Plan | None:
    """Return a plan that splits `axis` into about `target` parts, or None."""
    if isinstance(axis.extent, Const):
        size = axis.extent.value
        for parts in range(target, min(4 * target, size) + 1):
            if size % parts == 0:
                return _Plan(whole_axes, axis, Const(parts), Const(size // parts))
    if not mergeable:
        return None
    return _Plan(whole_axes, axis, Const(target), ceildiv(axis.extent, target), False)


def _plan_whole_axes(inner: tuple[Axis, ...], target: int, mergeable: bool) -> _Plan | None:
    """Return a plan over several axes: the outermost are used whole until they give about `target`
    parts, and the next axis is split if that is not enough. None if that is impossible."""
    product = 1
    for n, axis in enumerate(inner):
        if not isinstance(axis.extent, Const) or product >= target:
            break
        size = axis.extent.value
        if n < len(inner) - 1 and product * size <= 2 * target:
            product *= size
            continue
        more = -(-target // product)
        plan = _plan_split(inner[:n], axis, more, mergeable) if size >= 2 * more else None
        if plan is not None:
            return plan
        break
    return _Plan(inner[:n], None) if product > 1 else None


def _divisor_near(size: int, target: float) -> int:
    """Return the divisor of a size with the smallest ratio to `target`."""
    low = (d for d in range(1, isqrt(size) + 1) if size % d == 0)
    divisors = (d for pair in low for d in (pair, size // pair))
    return min(divisors, key=lambda d: max(d / target, target / d), default=1)


def _reads_adjacent_points(op: Reduction) -> bool:
    """Return whether a reduction loads consecutive elements for consecutive points."""
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


def _has_short_runs(plan: _Plan, op: Reduction, adjacent: int) -> bool:
    """Return whether parts consist of runs shorter than the device reads at once."""
    last = plan.axis is op.inner[-1] and len(op.inner) > 1 and not _reads_adjacent_points(op)
    return last and isinstance(plan.length, Const) and plan.length.value < adjacent


def _plan_columns(op: Reduction, columns: int, cores: int) -> _Plan | None:
    """Return a plan that makes each of up to `columns` adjacent columns a part, or None.

    The channels of a group are such columns when a group norm reads a channels-last tensor: a
    vector is longer than a group, but the columns of all groups follow each other.
    """
    inner = {a.symbol for a in op.inner}
    loads = [s for s in op.body if isinstance(s, Load)]
    loads = [s for s in loads if not inner.isdisjoint(s.index.free_symbols)]
    if not loads or not op.axes or len(op.inner) < 2:
        return None
    if space(op.axes) * space(op.inner) < _MIN_STRIDED:
        return None
    point = op.axes[-1].symbol
    for axis in op.inner:
        width = guess(axis.extent)
        if (
            isinstance(axis.extent, Const)
            and 1 < width <= columns
            and space(op.inner) >= _ADJACENT_STEPS * width
            and width * space(op.axes) >= _MIN_COLUMNS * cores
            and all(stride_of(s.index, axis.symbol) is ONE for s in loads)
            and all(stride_of(s.index, point) is axis.extent for s in loads)
        ):
            return _Plan((axis,), None)
    return None


@frozen
class _Rows:
    """The axes of a reduction: `axes` number the rows, `inner` are reduced."""

    axes: tuple[Axis, ...]
    inner: tuple[Axis, ...]

    @property
    def elements(self) -> int:
        """Number of elements of all rows."""
        return space(self.axes) * space(self.inner)


@define(eq=False)
class _Splitter:
    """Splits the reductions of one program, and collects the new buffers."""

    options: SplitReductions
    part_buffers: PartBuffers
    rows: dict[str, _Rows] = field(factory=dict)
    """The rows whose reduction gave a buffer, or a factor of its elements."""
    operands: dict[str, set[tuple[int, int]]] = field(factory=dict)
    """The numbers and lengths of contiguous rows of a buffer that a reduction reads."""

    def record_operands(self, op: Reduction) -> None:
        """Record the buffers whose contiguous rows an operation reduces, for devices whose kernels
        of rows also sum columns."""
        heuristics = self._heuristics(op)
        if heuristics is None or not heuristics.total_elements:
            return
        last = op.inner[-1].symbol
        rows = space(op.axes), space(op.inner)
        for s in op.body:
            if isinstance(s, Load) and stride_of(s.index, last) is ONE:
                self.operands.setdefault(s.buffer, set()).add(rows)

    def record_rows(self, op: Operation) -> None:
        """Record the buffers that an operation computes by rows."""
        if isinstance(op, Reduction):
            if op.axes:
                self.rows.update((s.buffer, _Rows(op.axes, op.inner)) for s in op.stores)
        elif isinstance(op, Pointwise):
            rows = self._rows_of(op.body, space(op.axes))
            if rows is not None:
                self.rows.update((s.buffer, rows) for s in op.body if isinstance(s, Store))

    def _rows_of(self, body: Iterable[Statement], elements: int) -> _Rows | None:
        """Return the rows, of so many elements in all, that the operands were computed by."""
        read = (self.rows.get(s.buffer) for s in body if isinstance(s, Load))
        return next((r for r in read if r is not None and r.elements == elements), None)

    def _plan_rows(self, op: Reduction, adjacent: int) -> _Plan | None:
        """Return a plan that makes each row of the operands a part, or None."""
        elements = space(op.inner)
        rows = None if op.axes else self._rows_of(op.body, elements)
        least = self.options.part if adjacent > 1 else _MIN_ROW
        if rows is None or space(rows.inner) < least:
            return None
        count, extents = 0, [a.extent for a in rows.axes]
        while extents and count < len(op.inner) and op.inner[count].extent is extents[0]:
            count += 1
            del extents[0]
        if count == len(op.inner):
            return None
        if not extents:
            return _Plan(op.inner[:count], None)
        axis, parts = op.inner[count], product_of(extents)
        length = axis.extent // parts
        exact = length * parts is axis.extent
        return _Plan(op.inner[:count], axis, parts, length) if exact else None

    def _plan_totals(self, op: Reduction, cores: int) -> _Plan | None:
        """Return a plan for the sum of columns whose rows another reduction reads or produces, or
        None: one part per core, or up to `_PARTS` of short rows, of which few fill a core."""
        heuristics = self._heuristics(op)
        columns, rows = space(op.axes), space(op.inner)
        buffers = {s.buffer for s in op.body if isinstance(s, Load)}
        if (
            heuristics is None
            or not 0 < columns <= heuristics.total_elements
            or columns * rows < heuristics.total_grain
            or op.reduce.kind is not ReduceKind.SUM
            or op.reduce.dtype not in (DType.F32, DType.F64)
            or not _reads_adjacent_points(op)
            or not any(self._has_rows(b, rows, columns) for b in buffers)
        ):
            return None
        target = cores * min(max(_LONG_ROW // columns, 1), _PARTS)
        target = min(target, rows // _MIN_TOTAL)
        if 2 * target < cores:
            return None
        parts = 1
        for n, axis in enumerate(op.inner):
            if not isinstance(axis.extent, Const):
                return None
            size = axis.extent.value
            count = _divisor_near(size, target / parts)
            parts *= count
            if count < size:
                if 2 * parts < cores or rows < _MIN_TOTAL * parts:
                    return None
                return _Plan(op.inner[:n], axis, Const(count), Const(size // count))
        return None

    def _has_rows(self, buffer: str, count: int, length: int) -> bool:
        """Return whether a kernel of `count` rows of a length reads or computes a buffer."""
        rows = self.rows.get(buffer)
        computed = rows is not None and (space(rows.axes), space(rows.inner)) == (count, length)
        return computed or (count, length) in self.operands.get(buffer, ())

    def split(self, op: Reduction) -> list[Operation]:
        """Return the operations that replace a reduction."""
        plan = self._plan(op)
        if plan is None:
            return [op]
        extents = plan.extents
        cuts = tuple(Axis(Sym(f"i{len(op.axes) + 1000 + n}"), e) for n, e in enumerate(extents))
        step = Sym("r1000")
        # Adjacent points stay adjacent: the last axis must be the one with unit stride.
        axes = (
            (*cuts, *op.axes)
            if plan.parts_first or _reads_adjacent_points(op)
            else (*op.axes, *cuts)
        )
        inner = tuple(
            Axis(step, plan.length) if a is plan.axis else a
            for a in op.inner
            if a not in plan.whole_axes
        )
        moved: dict[Sym, Expr] = {
            a.symbol: cut.symbol for a, cut in zip(plan.whole_axes, cuts, strict=False)
        }
        if plan.axis is not None:
            moved[plan.axis.symbol] = cuts[-1].symbol * plan.length + step
        partial = [self.buffer(op, n, axes) for n in range(len(op.reduce.names))]
        body, args = _body(op, plan, moved)
        address = row_major_address(axes, partial[0])
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
        part_axes = tuple(Axis(Sym(f"r{n}"), e) for n, e in enumerate(extents))
        again: dict[Sym, Expr] = {
            cut.symbol: line.symbol for cut, line in zip(cuts, part_axes, strict=True)
        }
        reread = renamed(Load("", "", address), {}, again).index
        return [first, *self._merged(op, partial, part_axes, reread)]

    def _plan(self, op: Reduction) -> _Plan | None:
        if self.options.exact and op.reduce.dtype.is_float and op.reduce.kind not in _EXACT:
            return None
        sides = self._sides(op)
        if sides is not None:
            return self._product_plan(op, *sides)
        points, extent, cores, adjacent = self._limits(op)
        mergeable = op.reduce.kind in MERGED_BY
        if not mergeable and op.reduce.kind not in (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX):
            return None
        if space(op.inner) >= extent and (by_rows := self._plan_rows(op, adjacent)) is not None:
            return by_rows
        if (by_core := self._plan_totals(op, cores)) is not None:
            return by_core
        heuristics = self._heuristics(op)
        columns = 0 if heuristics is None else heuristics.column_parts
        if (by_columns := _plan_columns(op, columns, cores)) is not None:
            return by_columns
        points_in_parallel = space(op.axes)
        if adjacent > 1 and _reads_adjacent_points(op):
            points_in_parallel = -(-points_in_parallel // adjacent)
            extent = min(extent, _ADJACENT_STEPS * adjacent)
        if cores < 2 or points_in_parallel >= min(points, 2 * cores) or space(op.inner) < extent:
            return None
        points_in_parallel = max(points_in_parallel, 1)
        target = -(-WORK_PER_CORE * cores // points_in_parallel)
        if adjacent > 1:
            elements = space(op.axes) * space(op.inner)
            target = min(target, elements // (self.options.part * points_in_parallel))
        target = max(target, 2)
        long = [a for a in op.inner if guess(a.extent) >= 2 * target]
        if not long:
            return _plan_whole_axes(op.inner, target, mergeable)
        plans = [p for a in long if (p := _plan_split((), a, target, mergeable)) is not None]
        scattered = adjacent > 1 and all(_has_short_runs(p, op, adjacent) for p in plans)
        plan_of_axes = _plan_whole_axes(op.inner, target, mergeable) if scattered else None
        if not plans or plan_of_axes is not None:
            return plan_of_axes
        return next((p for p in plans if p.exact), plans[0])

    def _sides(self, op: Reduction) -> tuple[int, int] | None:
        """Return the rows and columns of a product that matrix units compute, else None."""
        if self._device(op) not in self.options.matrix_units:
            return None
        axes = roles(op.axes, op.body, op.reduce)
        if axes is None:
            return None
        rows, columns = space(axes.rows), space(axes.columns)
        return (rows, columns) if min(rows, columns) >= _MIN_SIDE else None

    def _product_plan(self, op: Reduction, rows: int, columns: int) -> _Plan | None:
        """Split the reduction of a product so that there are enough blocks for all cores."""
        heuristics = self._heuristics(op)
        if heuristics is None:
            return None
        points = space(op.axes)
        blocks = max(points // (rows * columns), 1) * -(-rows // _BLOCK) * -(-columns // _BLOCK)
        each = points * op.reduce.dtype.size
        most = min(space(op.inner) // _MIN_PART, heuristics.slack_bytes // max(each, 1))
        target = min(-(-2 * heuristics.cores // blocks), most)
        if blocks >= heuristics.cores or target < 2 or space(op.inner) < _MIN_SPLIT:
            return None
        best: tuple[int, Axis] | None = None
        for a in op.inner:
            if not isinstance(a.extent, Const):
                continue
            size = a.extent.value
            count = next((n for n in range(min(target, size), 1, -1) if size % n == 0), 1)
            if count > 1 and (best is None or count > best[0]):
                best = count, a
        if best is None:
            return None
        parts, axis = best
        length = axis.extent // parts
        if length is ONE:
            return _Plan((axis,), None, parts_first=True)
        return _Plan((), axis, Const(parts), length, parts_first=True)

    def _device(self, op: Reduction) -> str:
        return self.part_buffers.buffers[op.stores[0].buffer].device.type

    def _heuristics(self, op: Reduction) -> Heuristics | None:
        return dict(self.options.by_device).get(self._device(op))

    def _limits(self, op: Reduction) -> tuple[int, int, int, int]:
        """Return the limits `points` and `extent`, and the numbers of cores and adjacent points,
        for an operation's device."""
        o, h = self.options, self._heuristics(op)
        if h is None:
            return o.points, o.extent, o.cores, 1
        return h.split_reduction_points, h.split_reduction_extent, h.cores, h.adjacent_points

    def buffer(self, op: Reduction, n: int, axes: tuple[Axis, ...]) -> Buffer:
        """Return a new buffer with one element per iteration of `axes`."""
        return self.part_buffers.make(
            f"{op.name}_part{n}", op.reduce.dtype, op.stores[0].buffer, axes
        )

    def _merged(
        self, op: Reduction, partial: list[Buffer], part_axes: tuple[Axis, ...], address: Expr
    ) -> list[Operation]:
        """Return the operations that merge the parts."""
        loads = tuple(Load(f"a{n}", b.name, address) for n, b in enumerate(partial))
        dtype = op.reduce.dtype
        if op.reduce.kind in MERGED_BY:
            reduction = Reduce(op.reduce.names, MERGED_BY[op.reduce.kind], ("a0",), dtype)
            return [evolve(op, inner=part_axes, body=loads, reduce=reduction)]
        merge = _Merge(self, op, part_axes, loads)
        return merge.softmax() if op.reduce.kind is ReduceKind.ONLINE_SOFTMAX else merge.welford()


@define(eq=False)
class _Merge:
    """Merges the parts of a reduction with several results, by small reductions that fusion puts
    into one kernel."""

    splitter: _Splitter
    op: Reduction
    part_axes: tuple[Axis, ...]
    loads: tuple[Load, ...]
    operations: list[Operation] = field(factory=list)

    def softmax(self) -> list[Operation]:
        """Merge (m, s) by m = max m_i and s = sum of s_i * exp(m_i - m)."""
        top = self._reduce(ReduceKind.MAX, self.loads[:1], "a0")
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
        total = self._reduce(ReduceKind.SUM, body, "g")
        self._store((self._at_points("m", top), self._at_points("s", total)), ("m", "s"))
        return self.operations

    def welford(self) -> list[Operation]:
        """Merge (mean, squares, count) as Chan, Golub and LeVeque (1979) do, over all parts.

        The mean is corrected by the sum of the deviations from it, so that rounding gives the parts
        of equal elements no deviation.
        """
        dtype = self.op.reduce.dtype
        count = self._reduce(ReduceKind.SUM, self.loads[2:], "a2")
        weighed = (self.loads[0], self.loads[2], Let("w", "mul", ("a0", "a2"), dtype))
        total = self._reduce(ReduceKind.SUM, weighed, "w")
        near: tuple[Statement, ...] = (
            self._at_points("n", count),
            self._at_points("t", total),
            Let("near", "div", ("t", "n"), dtype),
        )
        apart = (
            self.loads[0],
            self.loads[2],
            *near,
            Let("d", "sub", ("a0", "near"), dtype),
            Let("w", "mul", ("d", "a2"), dtype),
        )
        rest = self._reduce(ReduceKind.SUM, apart, "w")
        mean: tuple[Statement, ...] = (
            *near,
            self._at_points("r", rest),
            Let("step", "div", ("r", "n"), dtype),
            Let("mean", "add", ("near", "step"), dtype),
        )
        body: tuple[Statement, ...] = (
            *self.loads,
            *mean,
            Let("d", "sub", ("a0", "mean"), dtype),
            Let("dd", "mul", ("d", "d"), dtype),
            Let("w", "mul", ("dd", "a2"), dtype),
            Let("q", "add", ("a1", "w"), dtype),
        )
        squares = self._reduce(ReduceKind.SUM, body, "q")
        self._store((*mean, self._at_points("q", squares)), ("mean", "q", "n"))
        return self.operations

    def _reduce(self, kind: ReduceKind, body: tuple[Statement, ...], value: str) -> Buffer:
        op = self.op
        out = self.splitter.buffer(op, len(self.operations) + 100, op.axes)
        reduction = Reduce(("c",), kind, (value,), op.reduce.dtype)
        store = Store(out.name, self._place(out), "c")
        name = f"{op.name}_merge{len(self.operations)}"
        self.operations.append(
            Reduction(name, op.axes, self.part_axes, body, reduction, (store,), op.origins)
        )
        return out

    def _place(self, b: Buffer) -> Expr:
        return row_major_address(self.op.axes, b)

    def _at_points(self, name: str, b: Buffer) -> Load:
        return Load(name, b.name, self._place(b))

    def _store(self, body: tuple[Statement, ...], values: tuple[str, ...]) -> None:
        """Append the pointwise operation that stores the merged results."""
        names = dict(zip(self.op.reduce.names, values, strict=True))
        stores = tuple(renamed(s, names, {}) for s in self.op.stores)
        self.operations.append(
            Pointwise(self.op.name, self.op.axes, (*body, *stores), self.op.origins)
        )


def _body(
    op: Reduction, plan: _Plan, moved: dict[Sym, Expr]
) -> tuple[list[Statement], tuple[str, ...]]:
    """Return the body of the first step with `moved` substituted, and the values to reduce. Beyond
    the end of the axis, loads are masked and the values are the reduction's identity."""
    if plan.axis is None or plan.exact:
        return [renamed(s, {}, moved) for s in op.body], op.reduce.args
    used_names = {n for s in op.body for n in defined(s)}
    axis = plan.axis
    body, inside = masked_body(op.body, moved, moved[axis.symbol], axis.extent, used_names)
    kind, dtype = op.reduce.kind, op.reduce.dtype
    return body, with_identity(body, op.reduce.args, inside, kind, dtype, used_names)
