"""`split-scans`: split scans of few long rows into parts.

Three phases, which give the same result in every run: a reduction of each part; a scan of these
results; and a scan within each part, which starts from the result of the parts before it.
"""

from typing import ClassVar

from attrs import evolve

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
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import Const, Expr, Sym, ceildiv
from gyrator_ir.loop.nodes import LoopProgram, Operation, Reduction, Scan
from gyrator_ir.target import Heuristics
from gyrator_ir.types import DType
from gyrator_scheduler.fusion.axes import guess, space
from gyrator_scheduler.naming import fresh
from gyrator_scheduler.passes.rewriting import each_subprogram
from gyrator_scheduler.passes.splitting import (
    WORK_PER_CORE,
    PartBuffers,
    masked_body,
    row_major_address,
    with_identity,
)

_MIN_CORES = 8
"""Minimum number of cores that repays reading the input twice."""
_MIN_PART = 256
"""Minimum number of elements in a part."""
_REDUCTIONS = {
    ScanKind.SUM: (ReduceKind.SUM, "add"),
    ScanKind.PROD: (ReduceKind.PROD, "mul"),
    ScanKind.MIN: (ReduceKind.MIN, "minimum"),
    ScanKind.MAX: (ReduceKind.MAX, "maximum"),
}
"""The reduction of a part, and the op that combines it with the preceding result."""


@frozen
class SplitScans:
    """Split scans whose rows are long and too few for all cores, by the heuristics of their device
    type in `by_device`."""

    name: ClassVar[str] = "split-scans"
    by_device: tuple[tuple[str, Heuristics], ...] = ()

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with long scans split into three phases."""
        program = each_subprogram(program, self.run)
        splitter = _Splitter(dict(self.by_device), PartBuffers(program.all_buffers))
        operations: list[Operation] = []
        for op in program.operations:
            operations.extend(splitter.split(op) if isinstance(op, Scan) else (op,))
        new = tuple(splitter.part_buffers.new)
        if not new:
            return program
        return evolve(program, operations=tuple(operations), buffers=program.buffers + new)


@define(eq=False)
class _Splitter:
    """Splits the scans of one program, and collects the new buffers."""

    heuristics: dict[str, Heuristics]
    part_buffers: PartBuffers

    def split(self, op: Scan) -> list[Operation]:
        """Return the operations that replace a scan."""
        parts = self._parts(op)
        if parts is None:
            return [op]
        kind, join = _REDUCTIONS[op.scan.kind]
        part, step = Axis(Sym(f"i{len(op.axes) + 1000}"), Const(parts)), Sym("r1000")
        inner = Axis(step, ceildiv(op.inner.extent, parts))
        axes = (*op.axes, part)
        exact = inner.extent * parts is op.inner.extent
        within = _PartBody(op, part.symbol * inner.extent + step, exact)
        body, value = within.body, within.value
        totals, sums = (
            self.part_buffers.make(f"{op.name}_{suffix}", op.scan.dtype, op.stores[0].buffer, axes)
            for suffix in ("total", "before")
        )
        address = row_major_address(axes, totals)
        names, dtype = op.scan.names, op.scan.dtype
        reduction = Reduction(
            f"{op.name}_parts", axes, (inner,), body, Reduce(names, kind, (value,), dtype),
            (Store(totals.name, address, names[0]),), op.origins,
        )  # fmt: skip
        part_axis = Axis(Sym("r0"), part.extent)
        load = renamed(Load("a", totals.name, address), {}, {part.symbol: part_axis.symbol})
        running = Scan(
            f"{op.name}_running", op.axes, part_axis, (load,), evolve(op.scan, args=("a",)),
            (Store(sums.name, load.index, names[0]),), op.origins,
        )  # fmt: skip
        joined, first = within.joined(join, part, inner, sums.name, address)
        last = evolve(
            op, axes=axes, inner=inner, body=(*body, *joined), scan=evolve(op.scan, args=(first,)),
            stores=within.stores,
        )  # fmt: skip
        return [reduction, running, last]

    def _parts(self, op: Scan) -> int | None:
        heuristics = self.heuristics.get(self.part_buffers.buffers[op.stores[0].buffer].device.type)
        if heuristics is None or heuristics.cores < _MIN_CORES or op.scan.kind not in _REDUCTIONS:
            return None
        points, extent = space(op.axes), guess(op.inner.extent)
        few = min(heuristics.split_reduction_points, 2 * heuristics.cores)
        if points >= few or extent < heuristics.split_scan_extent:
            return None
        target = -(-WORK_PER_CORE * heuristics.cores // max(points, 1))
        parts = min(target, extent // _MIN_PART)
        if isinstance(op.inner.extent, Const):
            for exact in range(parts, 2 * parts):
                if extent % exact == 0:
                    return exact
        return parts if parts > 1 else None


class _PartBody:
    """The body of a scan within a part, masked beyond the end of the row.

    Args:
        op: the scan.
        where: the index in the row.
        exact: the parts cover the row exactly, so that no mask is needed.
    """

    def __init__(self, op: Scan, where: Expr, exact: bool) -> None:
        self._op = op
        self._used_names = {n for s in (*op.body, op.scan) for n in defined(s)}
        self._inside: str | None = None
        self.body: tuple[Statement, ...] = ()
        """The statements."""
        self.value = op.scan.args[0]
        """The value that is scanned."""
        self._moved: dict[Sym, Expr] = {op.inner.symbol: where}
        self._write(where, exact)

    def _write(self, where: Expr, exact: bool) -> None:
        op = self._op
        if exact:
            self.body = tuple(renamed(s, {}, self._moved) for s in op.body)
            return
        end, used_names = op.inner.extent, self._used_names
        body, self._inside = masked_body(op.body, self._moved, where, end, used_names)
        kind, dtype = _REDUCTIONS[op.scan.kind][0], op.scan.dtype
        (self.value,) = with_identity(body, (self.value,), self._inside, kind, dtype, used_names)
        self.body = tuple(body)

    @property
    def stores(self) -> tuple[Store, ...]:
        """The scan's stores."""
        moved = (renamed(s, {}, self._moved) for s in self._op.stores)
        return tuple(evolve(s, mask=self._inside) if self._inside else s for s in moved)

    def joined(
        self, join: str, part: Axis, inner: Axis, before: str, address: Expr
    ) -> tuple[tuple[Statement, ...], str]:
        """Return statements that combine the first element of a part with the result of the parts
        before it, and the name of the combined value. `before` is the buffer with the scan of the
        part results, of which this part's element is at `address`."""
        back = self._op.scan.reverse
        dtype = self._op.scan.dtype
        at, edge, k, end, starts, later, both, so_far, total, chosen = map(
            self._fresh,
            ("at", "edge", "k", "last", "starts", "later", "begins", "so_far", "joined", "begun"),
        )
        neighbour = renamed(
            Load(so_far, before, address, both),
            {},
            {part.symbol: part.symbol + (1 if back else -1)},
        )
        return (
            IndexValue(at, inner.symbol, DType.I64),
            IndexValue(edge, inner.extent - 1 if back else Const(0), DType.I64),
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
        return fresh(stem, self._used_names)
