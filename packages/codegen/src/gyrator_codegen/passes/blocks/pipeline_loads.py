"""`pipeline-loads`: software pipelining of loads."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import power_of_two
from gyrator_codegen.lanes import consecutive_inside
from gyrator_codegen.passes.blocks.block_shapes import TOTAL_BYTES
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Load
from gyrator_ir.body.rewrite import writes
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.tile.loops import extent_of, in_one_step, steps_of
from gyrator_ir.tile.nodes import Choice, Pipelined, TiledKernel

_STAGES = (1, 2, 3, 4)


@frozen
class PipelineLoads(KernelPass):
    """Keep the loads of `steps` steps in flight, through shared memory, in loops that reduce across
    contiguous points, where a thread otherwise has too few loads in flight.

    Stages that load from more than `buffers` buffers are not pipelined, since each takes shared
    memory. The pipeline depth of matrix products is a choice. Programs that loop over rows to sum
    their columns, whose few programs have few loads in flight, keep as many of up to `steps` steps
    in flight as fit in `shared_bytes`.
    """

    name: ClassVar[str] = "pipeline-loads"
    steps: int = 3
    buffers: int = 4
    shared_bytes: int = 0

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        inside = [n for n, stage in enumerate(kernel.stages) if stage.level is Level.INNER]
        if tiled.contraction is not None:
            return evolve(
                tiled,
                pipelined=tuple(Pipelined(n, "num_stages") for n in inside),
                choices=(*tiled.choices, Choice("num_stages", _STAGES)),
            )
        if kernel.totals:
            steps = self._steps_of_rows(kernel)
            return evolve(tiled, pipelined=tuple(Pipelined(n, steps) for n in inside))
        # The loads of a loop over single elements hit the cache, because neighbours have read them.
        if not kernel.inner or in_one_step(tiled) or steps_of(tiled, tiled.loops[-1]) == (1,):
            return tiled
        if consecutive_inside(kernel):
            return tiled
        ahead = [n for n in inside if self._may_read_ahead(kernel.stages[n])]
        return evolve(tiled, pipelined=tuple(Pipelined(n, self.steps) for n in ahead))

    def _steps_of_rows(self, kernel: Kernel) -> int:
        """Return how many steps of a loop over rows to keep in flight."""
        if not set(kernel.reads).isdisjoint(kernel.writes):
            return 1
        row, summed = kernel.inner[-1].symbol, {a.symbol for a in kernel.summed}
        loads = {
            (s.buffer, s.index)
            for s in kernel.statements
            if isinstance(s, Load) and row in s.index.free_symbols and summed & s.index.free_symbols
        }
        extent = extent_of(kernel.inner)
        length = power_of_two(extent.value) if isinstance(extent, Const) else 0
        step = sum(max(length * kernel.storage[b].size, TOTAL_BYTES) for b, _ in loads)
        return max(min(self.steps, self.shared_bytes // max(step, 1)), 1)

    def _may_read_ahead(self, stage: Stage) -> bool:
        if any(isinstance(s, Bind) for s in stage.body):
            return False
        read = {s.buffer for s in stage.body if isinstance(s, Load)}
        return len(read) <= self.buffers and read.isdisjoint(writes(stage.body))
