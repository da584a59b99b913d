"""`exact-casts`: casts to narrow floats of values that came from such floats round nothing."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.rounding import round_to
from gyrator_ir.body.nodes import Const, Let, Load
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

_NARROW = (DType.BF16, DType.F16)

_CHOOSING = frozenset(("maximum", "minimum", "fmax", "fmin", "neg", "abs"))
"""Ops whose result is one of their operands, or that with another sign."""


@frozen
class ExactCasts(KernelPass):
    """Record the casts from `f32` to `bf16` and `f16` that provably round nothing."""

    name: ClassVar[str] = "exact-casts"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        types = tiled.kernel.storage
        known: dict[str, DType] = {}
        held: dict[str, frozenset[DType]] = {}
        """Of `f32` values: the narrow floats that hold them as they are."""
        exact: dict[str, bool] = {}
        for s in (s for stage in tiled.kernel.stages for s in stage.body):
            for name in defined(s):
                held.pop(name, None)
            match s:
                case Const(name, value, DType.F32):
                    number = float(value)
                    held[name] = frozenset(d for d in _NARROW if round_to(number, d) == number)
                case Let(name, "cast", (arg,), dtype):
                    # Stages may use one name for values of their own.
                    exact[name] = exact.get(name, True) and dtype in held.get(arg, ())
                    if dtype is DType.F32 and known.get(arg) in _NARROW:
                        held[name] = frozenset((known[arg],))
                case Let(name, op, args, DType.F32) if op in _CHOOSING:
                    held[name] = frozenset.intersection(*(held.get(a, frozenset()) for a in args))
            if isinstance(s, Let):
                known[s.name] = s.dtype
            elif isinstance(s, Load):
                known[s.name] = types[s.buffer]
        names = tuple(name for name, sure in exact.items() if sure)
        return evolve(tiled, exact=names) if names else tiled
