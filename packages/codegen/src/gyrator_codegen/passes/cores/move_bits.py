"""`move-bits`: move narrow floats that a kernel does not compute with as integers."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.constants import is_zero
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Const, Let, Load, Store, StoreMode
from gyrator_ir.body.rewrite import types_of, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Stage
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType


@frozen
class MoveBits(KernelPass):
    """Replace the types of narrow floats that a kernel only loads, selects and stores by integers
    of the same size. Cores compute with `f32`, so that floats are converted twice."""

    name: ClassVar[str] = "move-bits"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.locals:
            return tiled
        narrow = {b.dtype for b in kernel.parameters if b.dtype.is_narrow_float}
        moved = {
            dtype: DType.I16 if dtype.size == 2 else DType.U8
            for dtype in narrow
            if _only_moves(kernel, dtype)
        }
        if not moved:
            return tiled
        stages = tuple(
            Stage(stage.level, tuple(_as_integers(s, moved) for s in stage.body))
            for stage in kernel.stages
        )
        parameters = tuple(evolve(b, dtype=moved.get(b.dtype, b.dtype)) for b in kernel.parameters)
        return evolve(tiled, kernel=evolve(kernel, parameters=parameters, stages=stages))


def _only_moves(kernel: Kernel, dtype: DType) -> bool:
    """Return whether values of a type are only moved."""
    values: set[str] = set()
    for s in kernel.statements:
        operands = values.intersection(used(s))
        match s:
            case Let(op="where", dtype=result) if result is dtype:
                fine = s.args[0] not in values and operands == {*s.args[1:]}
            case Const(value=value, dtype=result) if result is dtype:
                fine = is_zero(value)
            case Store(buffer=buffer, value=value, mode=StoreMode.SET):
                fine = (value in values) is (kernel.storage[buffer] is dtype)
            case Store(buffer=buffer):
                fine = kernel.storage[buffer] is not dtype and not operands
            case Load():
                fine = True
            case _:
                fine = not operands and dtype not in types_of(s, kernel.storage).values()
        if not fine:
            return False
        values |= {name for name, t in types_of(s, kernel.storage).items() if t is dtype}
    return True


def _as_integers(s: KernelStatement, moved: dict[DType, DType]) -> KernelStatement:
    match s:
        case Const(dtype=dtype) if dtype in moved:
            return evolve(s, value=0, dtype=moved[dtype])
        case Let(dtype=dtype) if dtype in moved:
            return evolve(s, dtype=moved[dtype])
    return s
