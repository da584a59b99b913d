"""`split-copies`: copy runs of elements to several places by loops of their own."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.stage_loops import later_values
from gyrator_ir.body.nodes import Load, Store
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.tile.loops import in_loop
from gyrator_ir.tile.nodes import Access, Fission, TiledKernel


@frozen
class SplitCopies(KernelPass):
    """Split the vector loops of stages that only copy runs of elements to several places of one
    buffer, which no load reads.

    A processor writes the parts of a cache line together if they are stored one right after the
    other. If the buffer shares the memory of another that is read, which it does only if each point
    writes the address that it reads, loops may follow each other. This pass runs after
    `cut-sections`.
    """

    name: ClassVar[str] = "split-copies"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled)
        if loops is None or not loops.across or tiled.sections or tiled.transposed:
            return tiled
        if not loops.columns and (kernel.inner or len(kernel.stages) > 1):
            return tiled
        fissions = tuple(
            Fission(number, values)
            for number, stage in enumerate(kernel.stages)
            if stage.level is Level.OUTER and (values := _copied(tiled, number))
        )
        return evolve(tiled, fissions=fissions) if fissions else tiled


def _copied(tiled: TiledKernel, number: int) -> tuple[str, ...]:
    """Return the values that a stage copies to several places of a buffer; nothing if it computes,
    or reads the buffer."""
    kernel = tiled.kernel
    unit = {a.index for a in tiled.accesses if a.kind is Access.UNIT}
    loads: set[str] = set()
    stores: list[Store] = []
    for s in in_loop(tiled, kernel.stages[number].body):
        if not isinstance(s, Load | Store) or s.mask is not None or s.index not in unit:
            return ()
        if isinstance(s, Load):
            loads.add(s.buffer)
        else:
            stores.append(s)
    written, values = {s.buffer for s in stores}, tuple(dict.fromkeys(s.value for s in stores))
    if len(written) != 1 or len(values) < 2 or written & loads:
        return ()
    return () if later_values(kernel, number, kernel.storage) else values
