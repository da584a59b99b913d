"""`settle-conditions`: comparisons whose results are known are left out.

Borders of windows hold on one side, or on none, for most of the elements that a window has: masks
of the others go, and loads need not wait for them.
"""

from collections.abc import Iterator
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.passes.settle import settled
from gyrator_codegen.value_ranges import ValueRanges
from gyrator_ir.body.nodes import Const, Let, Reduce, ScanStep, SortStep, Store
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import KernelStatement, Stage
from gyrator_ir.tile.loops import kernel_facts
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType


@frozen
class SettleConditions(KernelPass):
    """Replace comparisons of integers that ranges decide by constants, in kernels of one stage
    without folds, and leave out what is not needed any more."""

    name: ClassVar[str] = "settle-conditions"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if len(kernel.stages) != 1 or kernel.locals:
            return tiled
        (stage,) = kernel.stages
        if any(isinstance(s, Reduce | ScanStep | SortStep) for s in stage.body):
            return tiled
        ranges = ValueRanges(kernel_facts(kernel, facts), kernel.storage)
        body = tuple(_constants(stage, ranges))
        if body == stage.body:
            return tiled
        stored = {s.buffer for s in body if isinstance(s, Store)}
        types = {b.name: b.dtype for b in kernel.parameters}
        made = evolve(kernel, stages=(Stage(stage.level, settled(body, stored, types)),))
        return evolve(tiled, kernel=made) if made.reads == kernel.reads else tiled


def _constants(stage: Stage, ranges: ValueRanges) -> Iterator[KernelStatement]:
    for s in stage.body:
        ranges.tell(s)
        if isinstance(s, Let) and (known := ranges.compared(s)) is not None:
            yield Const(s.name, known, DType.BOOL)
        else:
            yield s
