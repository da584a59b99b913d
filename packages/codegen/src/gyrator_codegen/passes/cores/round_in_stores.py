"""`round-in-stores`: move the rounding of a value to a narrow float into its store."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Let, Store, StoreMode
from gyrator_ir.body.rewrite import defined, types_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.tile.nodes import TiledKernel, Unrounded
from gyrator_ir.types import DType


@frozen
class RoundInStores(KernelPass):
    """Record the stores of casts from `f32` to the element type of their buffer that can take the
    `f32` value instead, because it is available at the store."""

    name: ClassVar[str] = "round-in-stores"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled)
        storage = kernel.storage
        alone = loops is not None and loops.columns
        types: dict[str, DType] = {}
        casts: dict[str, tuple[str, DType]] = {}
        """For each cast, its `f32` operand and its type."""
        unrounded: list[Unrounded] = []
        for number, stage in enumerate(kernel.stages):
            outside = {} if alone else dict(casts)
            for position, s in enumerate(stage.body):
                for name in defined(s):
                    casts.pop(name, None)
                match s:
                    case Let(name, "cast", (arg,), dtype) if dtype.is_narrow_float:
                        if types.get(arg) is DType.F32:
                            casts[name] = (arg, dtype)
                    case Store(buffer=buffer, value=value, mode=StoreMode.SET):
                        cast = casts.get(value)
                        if cast is not None and cast[1] is storage[buffer]:
                            unrounded.append(Unrounded(number, position, cast[0]))
                types |= types_of(s, storage)
            if alone or stage.level is Level.INNER:
                casts = outside  # the others are per step, or stored in arrays
        return evolve(tiled, unrounded=tuple(unrounded)) if unrounded else tiled
