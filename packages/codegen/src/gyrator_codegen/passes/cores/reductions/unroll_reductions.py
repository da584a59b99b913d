"""`unroll-reductions`: unroll factors of reduction loops."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import invariant, static, work
from gyrator_codegen.nests import Nest, nest
from gyrator_codegen.passes.rewriting import KernelPass, Reduced, each_stage
from gyrator_ir.body.nodes import Const, Reduce, ReduceKind
from gyrator_ir.body.rewrite import writes
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Stage
from gyrator_ir.tile.nodes import Reduction, TiledKernel

_SEQUENTIAL = (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX)


@frozen
class UnrollReductions(KernelPass):
    """Unroll the reduction loops of cheap stages.

    Along rows, this hides latency, since each unrolled step has its own accumulator. Down columns,
    it saves loads and stores of accumulators.
    """

    rows_by_four: int = 12
    """Maximum cost of a step, relative to an addition, to unroll by four along rows..."""
    rows_by_two: int = 40
    columns_by_four: int = 6
    """... and down columns."""
    columns_by_two: int = 16

    name: ClassVar[str] = "unroll-reductions"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        loops = nest(tiled) if tiled.reductions else None
        if loops is None:
            return tiled
        rows = not loops.across and loops.lanes > 1
        if not rows and not loops.columns:
            return tiled
        count = self._rows if rows else self._columns

        def unrolled(stage: Stage, reduced: Reduced) -> list[Reduction]:
            unroll = count(tiled.kernel, stage, loops)
            return [evolve(r, unroll=unroll) for _, r in reduced]

        return each_stage(tiled, unrolled)

    def _rows(self, kernel: Kernel, stage: Stage, loops: Nest) -> int:
        """Return the unroll factor, a power of two: larger to hide the latency of cheap bodies,
        smaller to limit code size."""
        nonempty = all((static(a.extent) or 0) > 0 for a in kernel.inner)
        symbols = [a.symbol for a in kernel.inner]
        written = writes(kernel.statements)
        _, rest = invariant(stage.body, symbols, written, nonempty)
        price = work(rest)
        count = 4 if price <= self.rows_by_four else 2 if price <= self.rows_by_two else 1
        if any(isinstance(s, Reduce) and s.dtype.size > 4 for s in stage.body):
            count = min(count, 2)  # each vector already is two registers, hence two chains
        extent = static(loops.axis.extent)
        while extent is not None and count > 1 and extent < count * loops.lanes:
            count //= 2
        return count

    def _columns(self, kernel: Kernel, stage: Stage, loops: Nest) -> int:
        if any(isinstance(s, Reduce) and s.kind in _SEQUENTIAL for s in stage.body):
            return 1
        price = work(s for s in stage.body if not isinstance(s, Const))
        count = 4 if price <= self.columns_by_four else 2 if price <= self.columns_by_two else 1
        rows = static(kernel.inner[-1].extent)
        return count if rows is None or rows >= 4 * count else 1
