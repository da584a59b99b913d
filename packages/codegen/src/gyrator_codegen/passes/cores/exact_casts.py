"""`exact-casts`: find casts to narrow floats that do not round."""

from math import frexp
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.rounding import CHOOSING, round_to
from gyrator_ir.body.nodes import Const, Let
from gyrator_ir.body.rewrite import defined, types_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

_NARROW = (DType.BF16, DType.F16)


@frozen
class ExactCasts(KernelPass):
    """Record the casts from `f32` to `bf16` and `f16` that provably do not round."""

    name: ClassVar[str] = "exact-casts"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        storage = tiled.kernel.storage
        types: dict[str, DType] = {}
        exact_in: dict[str, frozenset[DType]] = {}
        """For `f32` values, the narrow floats that represent them exactly."""
        powers: set[str] = set()
        """Constants whose product with a `bf16` is exact in `bf16`: powers of two, at least one. An
        overflow of `bf16` is one of `f32` too; the range of `f16` is smaller."""
        exact: dict[str, bool] = {}
        for s in tiled.kernel.statements:
            for name in defined(s):
                exact_in.pop(name, None)
                powers.discard(name)
            match s:
                case Const(name, value, DType.F32):
                    number = float(value)
                    exact_in[name] = frozenset(d for d in _NARROW if round_to(number, d) == number)
                    if abs(number) >= 1 and abs(frexp(number)[0]) == 0.5:
                        powers.add(name)
                case Let(name, "cast", (arg,), dtype):
                    # Values of different stages may have the same name.
                    exact[name] = exact.get(name, True) and dtype in exact_in.get(arg, ())
                    if dtype is DType.F32 and types.get(arg) in _NARROW:
                        exact_in[name] = frozenset((types[arg],))
                case Let(name, "mul", (a, b), DType.F32) if a in powers or b in powers:
                    factor = exact_in.get(b if a in powers else a, frozenset())
                    exact_in[name] = factor & {DType.BF16}
                case Let(name, op, args, DType.F32) if op in CHOOSING:
                    operands = (exact_in.get(a, frozenset()) for a in args)
                    exact_in[name] = frozenset.intersection(*operands)
            types |= types_of(s, storage)
        names = tuple(name for name, sure in exact.items() if sure)
        return evolve(tiled, exact=names) if names else tiled
