"""`pack-sorts`: sort keys of 32 bits that contain the position, rather than keys of 64 bits."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Let, Load, SortStep
from gyrator_ir.body.rewrite import defined
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

_NARROW = (DType.BF16, DType.F16)
_LONGEST = 8192  # elements of a row whose positions fit into 13 bits


@frozen
class PackSorts(KernelPass):
    """Record the sorts of `f32` values that are cast from `bf16` or `f16`. This pass runs
    after `choose-blocks`."""

    name: ClassVar[str] = "pack-sorts"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        body, storage = tiled.kernel.statements, tiled.kernel.storage
        rows = next((c.values for c in tiled.choices if c.name == "RBLOCK"), ())
        if not rows or max(rows) > _LONGEST or not any(isinstance(s, SortStep) for s in body):
            return tiled
        narrow: set[str] = set()
        packed: list[str] = []
        for s in body:
            known = False
            match s:
                case Load(buffer=buffer):
                    known = storage[buffer] in _NARROW
                case Let(_, "cast", (arg,), DType.F32):
                    known = arg in narrow
                case Let(dtype=dtype):
                    known = dtype in _NARROW
                case SortStep(names, (arg,), DType.F32) if arg in narrow:
                    packed.append(names[0])
            # Values of different stages may have the same name.
            narrow.difference_update(defined(s))
            narrow.update(defined(s) if known else ())
        return evolve(tiled, packed=tuple(packed)) if packed else tiled
