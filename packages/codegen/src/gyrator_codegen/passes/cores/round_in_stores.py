"""`round-in-stores`: a store to narrow floats rounds what it is given, so that a value need not be
rounded for it first."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import (
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ScanStep,
    SortStep,
    Store,
    StoreMode,
)
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.tile.nodes import TiledKernel, Unrounded
from gyrator_ir.types import DType


@frozen
class RoundInStores(KernelPass):
    """Record the stores of casts to the element type of their buffers that may be given what is
    cast, an `f32` in reach."""

    name: ClassVar[str] = "round-in-stores"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled)
        storage = kernel.storage
        alone = loops is not None and loops.columns
        types: dict[str, DType] = {}
        casts: dict[str, tuple[str, DType]] = {}
        """The `f32` values that are cast to narrow floats, and these."""
        found: list[Unrounded] = []
        for number, stage in enumerate(kernel.stages):
            outside = {} if alone else dict(casts)
            for place, s in enumerate(stage.body):
                for name in defined(s):
                    casts.pop(name, None)
                match s:
                    case Let(name, "cast", (arg,), dtype) if dtype.is_narrow_float:
                        if types.get(arg) is DType.F32:
                            casts[name] = (arg, dtype)
                    case Store(buffer=buffer, value=value, mode=StoreMode.SET):
                        cast = casts.get(value)
                        if cast is not None and cast[1] is storage[buffer]:
                            found.append(Unrounded(number, place, cast[0]))
                match s:
                    case Let() | Const() | IndexValue():
                        types[s.name] = s.dtype
                    case Load():
                        types[s.name] = storage[s.buffer]
                    case Reduce() | ScanStep() | SortStep():
                        types |= zip(s.names, s.types, strict=True)
            if alone or stage.level is Level.INNER:
                casts = outside  # values of a step, or in arrays
        return evolve(tiled, unrounded=tuple(found)) if found else tiled
