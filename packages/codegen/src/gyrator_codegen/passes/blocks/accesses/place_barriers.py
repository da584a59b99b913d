"""`place-barriers`: synchronise a program's threads before loads of elements stored by others."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import blocks_of
from gyrator_ir.body.nodes import Load, Store
from gyrator_ir.body.rewrite import reads
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.tile.nodes import Barrier, TiledKernel


@frozen
class PlaceBarriers(KernelPass):
    """Place barriers before loops, and before loads outside of loops, that load from buffers stored
    to since the last barrier. This pass runs after `reuse-loads`."""

    name: ClassVar[str] = "place-barriers"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        blocks = blocks_of(tiled)
        reused = {(r.stage, r.statement) for r in tiled.reuses}
        local = {t.name for t in tiled.kernel.locals}
        stored: set[str] = set()
        barriers: list[Barrier] = []
        for number, stage in enumerate(tiled.kernel.stages):
            if tiled.contraction is not None and stage.level is Level.INNER:
                continue  # factors are loaded from buffers that the kernel only reads
            inner = stage.level is Level.INNER and bool(tiled.kernel.inner)
            loop = inner and not blocks.whole and not blocks.tiles
            if loop and not stored.isdisjoint(reads(stage.body)):
                barriers.append(Barrier(number, 0))
                stored.clear()
            for position, s in enumerate(stage.body):
                if isinstance(s, Load) and s.buffer in stored and (number, position) not in reused:
                    barriers.append(Barrier(number, position))
                    stored.clear()
                elif isinstance(s, Store) and s.buffer not in local:
                    stored.add(s.buffer)
        return evolve(tiled, barriers=tuple(barriers)) if barriers else tiled
