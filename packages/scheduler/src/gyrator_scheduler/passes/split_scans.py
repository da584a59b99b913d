"""`split-scans`: a running fold of few long rows becomes folds of parts, and scans of these.

Three phases, which give the same result in every run: the fold of each part; the running fold of
those; and the running fold inside of each part, which begins with what came before it.
"""

from typing import ClassVar

from attrs import define, evolve, frozen

from gyrator_ir.body.nodes import (
    Axis,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanKind,
    Statement,
    Store,
)
from gyrator_ir.body.rewrite import defined, renamed
from gyrator_ir.expr import Const, Expr, Sym, ceildiv
from gyrator_ir.loop.nodes import LoopProgram, Operation, Reduction, Scan
from gyrator_ir.target import Heuristics
from gyrator_ir.types import DType
from gyrator_scheduler.fusion.axes import guess, space
from gyrator_scheduler.naming import fresh
from gyrator_scheduler.passes.cutting import (
    WORK_PER_CORE,
    Partial,
    neutral_outside,
    overhanging,
    row_major_place,
)
from gyrator_scheduler.passes.rewriting import each_subprogram

_CORES = 8
"""The phases read everything twice, which pays where so many cores share them."""
_SHORTEST = 256
"""A part has at least so many elements."""
_FOLDS = {
    ScanKind.SUM: (ReduceKind.SUM, "add"),
    ScanKind.PROD: (ReduceKind.PROD, "mul"),
    ScanKind.MIN: (ReduceKind.MIN, "minimum"),
    ScanKind.MAX: (ReduceKind.MAX, "maximum"),
}
"""The fold of a part, and the op that joins it with what came before."""


@frozen
class SplitScans:
    """Split scans of rows that `by_device` says are long, where rows are too few for the cores."""

    name: ClassVar[str] = "split-scans"
    by_device: tuple[tuple[str, Heuristics], ...] = ()

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with long scans in three steps."""
        program = each_subprogram(program, self.run)
        splitter = _Splitter(dict(self.by_device), Partial(program.all_buffers))
        made: list[Operation] = []
        for op in program.operations:
            made.extend(splitter.split(op) if isinstance(op, Scan) else (op,))
        new = tuple(splitter.partial.new)
        if not new:
            return program
        return evolve(program, operations=tuple(made), buffers=program.buffers + new)


@define(eq=False)
class _Splitter:
    """Splits the scans of one program and collects the buffers that takes."""

    numbers: dict[str, Heuristics]
    partial: Partial

    def split(self, op: Scan) -> list[Operation]:
        """Return the operations that replace a scan."""
        parts = self._parts(op)
        if parts is None:
            return [op]
        kind, join = _FOLDS[op.scan.kind]
        part, step = Axis(Sym(f"i{len(op.axes) + 1000}"), Const(parts)), Sym("r1000")
        line = Axis(step, ceildiv(op.inner.extent, parts))
        axes = (*op.axes, part)
        exact = line.extent * parts is op.inner.extent
        within = _Within(op, part.symbol * line.extent + step, exact)
        body, value = within.body, within.value
        totals, sums = (
            self.partial.make(f"{op.name}_{what}", op.scan.dtype, op.stores[0].buffer, axes)
            for what in ("total", "before")
        )
        here = row_major_place(axes, totals)
        names, dtype = op.scan.names, op.scan.dtype
        fold = Reduction(
            f"{op.name}_parts", axes, (line,), body, Reduce(names, kind, (value,), dtype),
            (Store(totals.name, here, names[0]),), op.origins,
        )  # fmt: skip
        walk = Axis(Sym("r0"), part.extent)
        there = renamed(Load("a", totals.name, here), {}, {part.symbol: walk.symbol})
        running = Scan(
            f"{op.name}_running", op.axes, walk, (there,), evolve(op.scan, args=("a",)),
            (Store(sums.name, there.index, names[0]),), op.origins,
        )  # fmt: skip
        more, first = within.joined(join, part, line, sums.name, here)
        last = evolve(
            op, axes=axes, inner=line, body=(*body, *more), scan=evolve(op.scan, args=(first,)),
            stores=within.stores,
        )  # fmt: skip
        return [fold, running, last]

    def _parts(self, op: Scan) -> int | None:
        numbers = self.numbers.get(self.partial.buffers[op.stores[0].buffer].device.type)
        if numbers is None or numbers.cores < _CORES or op.scan.kind not in _FOLDS:
            return None
        points, extent = space(op.axes), guess(op.inner.extent)
        few = min(numbers.split_reduction_points, 2 * numbers.cores)
        if points >= few or extent < numbers.split_scan_extent:
            return None
        wanted = -(-WORK_PER_CORE * numbers.cores // max(points, 1))
        parts = min(wanted, extent // _SHORTEST)
        if isinstance(op.inner.extent, Const):
            for exact in range(parts, 2 * parts):
                if extent % exact == 0:
                    return exact
        return parts if parts > 1 else None


class _Within:
    """The body of a scan at a place in a part: nothing is read or written beyond the row.

    Args:
        op: the scan.
        where: the place in the row.
        exact: parts cover the row exactly.
    """

    def __init__(self, op: Scan, where: Expr, exact: bool) -> None:
        self._op = op
        self._taken = {n for s in (*op.body, op.scan) for n in defined(s)}
        self._inside: str | None = None
        self.body: tuple[Statement, ...] = ()
        """The statements."""
        self.value = op.scan.args[0]
        """What is folded."""
        self._moved: dict[Sym, Expr] = {op.inner.symbol: where}
        self._write(where, exact)

    def _write(self, where: Expr, exact: bool) -> None:
        op = self._op
        if exact:
            self.body = tuple(renamed(s, {}, self._moved) for s in op.body)
            return
        end, taken = op.inner.extent, self._taken
        body, self._inside = overhanging(op.body, self._moved, where, end, taken)
        kind, dtype = _FOLDS[op.scan.kind][0], op.scan.dtype
        (self.value,) = neutral_outside(body, (self.value,), self._inside, kind, dtype, taken)
        self.body = tuple(body)

    @property
    def stores(self) -> tuple[Store, ...]:
        """The scan's stores."""
        moved = (renamed(s, {}, self._moved) for s in self._op.stores)
        return tuple(evolve(s, mask=self._inside) if self._inside else s for s in moved)

    def joined(
        self, join: str, part: Axis, line: Axis, before: str, here: Expr
    ) -> tuple[tuple[Statement, ...], str]:
        """Return statements that join the first element of a part with what came before, and the
        name of the result. `before` holds running folds of parts, that of this part at `here`."""
        back = self._op.scan.reverse
        dtype = self._op.scan.dtype
        at, edge, k, end, starts, later, both, so_far, total, chosen = map(
            self._fresh,
            ("at", "edge", "k", "last", "starts", "later", "begins", "so_far", "joined", "begun"),
        )
        neighbour = renamed(
            Load(so_far, before, here, both), {}, {part.symbol: part.symbol + (1 if back else -1)}
        )
        return (
            IndexValue(at, line.symbol, DType.I64),
            IndexValue(edge, line.extent - 1 if back else Const(0), DType.I64),
            IndexValue(k, part.symbol, DType.I64),
            IndexValue(end, part.extent - 1 if back else Const(0), DType.I64),
            Let(starts, "eq", (at, edge), DType.BOOL),
            Let(later, "ne", (k, end), DType.BOOL),
            Let(both, "bit_and", (starts, later), DType.BOOL),
            neighbour,
            Let(total, join, (so_far, self.value), dtype),
            Let(chosen, "where", (both, total, self.value), dtype),
        ), chosen

    def _fresh(self, stem: str) -> str:
        return fresh(stem, self._taken)
