"""`settle-conditions`: remove comparisons with constant results.

Most elements of a window are certainly inside of at least one border. Without the masks for those
borders, loads need not wait for comparisons.
"""

from collections.abc import Iterator
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.constant_folding import folded
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.value_ranges import ValueRanges
from gyrator_ir.body.nodes import Const, Let, Reduce, ScanStep, SortStep, Store
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Stage
from gyrator_ir.tile.loops import kernel_facts
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType


@frozen
class SettleConditions(KernelPass):
    """Replace integer comparisons that ranges decide by constants, in kernels with one stage and no
    collectives, and fold the constants."""

    name: ClassVar[str] = "settle-conditions"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if len(kernel.stages) != 1 or kernel.locals:
            return tiled
        (stage,) = kernel.stages
        if any(isinstance(s, Reduce | ScanStep | SortStep) for s in stage.body):
            return tiled
        simplified = settled(kernel, facts)
        return evolve(tiled, kernel=simplified) if simplified.reads == kernel.reads else tiled


def settled(kernel: Kernel, facts: ShapeFacts) -> Kernel:
    """Return a kernel with one stage and no collectives, without comparisons that ranges decide."""
    (stage,) = kernel.stages
    ranges = ValueRanges(kernel_facts(kernel, facts), kernel.storage)
    body = tuple(_constants(stage, ranges))
    if body == stage.body:
        return kernel
    stored = {s.buffer for s in body if isinstance(s, Store)}
    types = {b.name: b.dtype for b in kernel.parameters}
    return evolve(kernel, stages=(Stage(stage.level, folded(body, stored, types)),))


def _constants(stage: Stage, ranges: ValueRanges) -> Iterator[KernelStatement]:
    for s in stage.body:
        ranges.add(s)
        if isinstance(s, Let) and (result := ranges.compared(s)) is not None:
            yield Const(s.name, result, DType.BOOL)
        else:
            yield s
