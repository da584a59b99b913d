"""`exact-stores`: find stores of `bf16` values that need no rounding."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.rounding import CHOOSING, round_to
from gyrator_ir.body.nodes import Const, Let, Load, ScanKind, ScanStep, Store, StoreMode
from gyrator_ir.body.rewrite import defined
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

_CHOOSING_SCANS = frozenset({ScanKind.MIN, ScanKind.MAX, ScanKind.ARGMIN, ScanKind.ARGMAX})


@frozen
class ExactStores(KernelPass):
    """Record the stored `bf16` values that are elements of the kernel's parameters, constants, or
    chosen among them, by a scan too. The lower half of each is zero as an `f32`, even if it is NaN,
    unlike that of other values that were rounded to `bf16`."""

    name: ClassVar[str] = "exact-stores"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        parameters = {p.name for p in tiled.kernel.parameters if p.dtype is DType.BF16}
        if not parameters:
            return tiled
        exact: dict[str, bool] = {}
        stored: dict[str, None] = {}
        for s in tiled.kernel.statements:
            match s:
                case Load(buffer=buffer):
                    sure = buffer in parameters
                case Const(_, value, DType.F32 | DType.BF16):
                    sure = round_to(float(value), DType.BF16) == value
                case Let(_, "where", (_, *args)):
                    sure = all(map(exact.__getitem__, args))
                case Let(_, "cast", (arg,), DType.F32 | DType.BF16):
                    sure = exact[arg]
                case Let(_, op, args):
                    sure = op in CHOOSING and all(map(exact.__getitem__, args))
                case ScanStep(kind=kind, args=(arg,)):
                    sure = kind in _CHOOSING_SCANS and exact[arg]
                case Store(buffer=buffer, value=value, mode=StoreMode.SET) if buffer in parameters:
                    stored[value] = None
                    continue
                case _:
                    sure = False
            for name in defined(s):
                # Values of different stages may have the same name.
                exact[name] = sure and exact.get(name, True)
        names = tuple(name for name in stored if exact[name])
        return evolve(tiled, truncated=names) if names else tiled
