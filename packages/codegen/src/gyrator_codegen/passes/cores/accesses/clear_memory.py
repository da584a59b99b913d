"""`clear-memory`: zero-fill contiguous memory by the machine's fastest method."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.constants import is_zero
from gyrator_codegen.lanes import lane_slope
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Const, Store, StoreMode
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class ClearMemory(KernelPass):
    """Record the buffers that a kernel without any computation fills contiguously with zeros."""

    name: ClassVar[str] = "clear-memory"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        body = tiled.kernel.statements
        stores = [s for s in body if isinstance(s, Store)]
        if any(not isinstance(s, Const | Store) for s in body):
            return tiled
        loops = nest(tiled)
        if loops is None or not loops.across or len({s.buffer for s in stores}) < len(stores):
            return tiled
        zeros = {s.name for s in body if isinstance(s, Const) and is_zero(s.value)}
        # The address must be affine: one that is only contiguous within a vector may jump after it.
        cleared = tuple(
            s.buffer
            for s in stores
            if s.mode is StoreMode.SET
            and s.mask is None
            and s.value in zeros
            and lane_slope(s.index, loops.symbol, 1 << 40) is ONE
        )
        return evolve(tiled, cleared=cleared) if cleared else tiled
