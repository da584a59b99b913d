"""`pipeline-loads`: software pipelining of loads."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.lanes import consecutive_inside
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Load
from gyrator_ir.body.rewrite import writes
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Level, Stage
from gyrator_ir.tile.loops import in_one_step, steps_of
from gyrator_ir.tile.nodes import Choice, Pipelined, TiledKernel

_STAGES = (1, 2, 3, 4)


@frozen
class PipelineLoads(KernelPass):
    """Keep the loads of `steps` steps in flight, through shared memory, in loops that reduce across
    contiguous points, where a thread otherwise has too few loads in flight.

    Stages that load from more than `buffers` buffers are not pipelined, since each takes shared
    memory. The pipeline depth of matrix products is a choice.
    """

    name: ClassVar[str] = "pipeline-loads"
    steps: int = 3
    buffers: int = 4

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        inside = [n for n, stage in enumerate(kernel.stages) if stage.level is Level.INNER]
        if tiled.contraction is not None:
            return evolve(
                tiled,
                pipelined=tuple(Pipelined(n, "num_stages") for n in inside),
                choices=(*tiled.choices, Choice("num_stages", _STAGES)),
            )
        # The loads of a loop over single elements hit the cache, because neighbours have read them.
        if not kernel.inner or in_one_step(tiled) or steps_of(tiled, tiled.loops[-1]) == (1,):
            return tiled
        if consecutive_inside(kernel):
            return tiled
        ahead = [n for n in inside if self._may_read_ahead(kernel.stages[n])]
        return evolve(tiled, pipelined=tuple(Pipelined(n, self.steps) for n in ahead))

    def _may_read_ahead(self, stage: Stage) -> bool:
        if any(isinstance(s, Bind) for s in stage.body):
            return False
        read = {s.buffer for s in stage.body if isinstance(s, Load)}
        return len(read) <= self.buffers and read.isdisjoint(writes(stage.body))
