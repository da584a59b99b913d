"""`move-bits`: move narrow floats that a kernel does not compute with as integers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from attrs import evolve, field

from gyrator_codegen.analysis import value_names
from gyrator_codegen.constants import is_zero
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.writer import Names
from gyrator_ir.body.nodes import Const, Let, Load, Store, StoreMode
from gyrator_ir.body.rewrite import defined, renamed, types_of, used
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Stage
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

_SIGN_OPS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"neg": ("bit_xor", -0x8000), "abs": ("bit_and", 0x7FFF)}
)
"""What changes the sign of a float of 16 bits, by the op on the float."""


@frozen
class MoveBits(KernelPass):
    """Replace the types of narrow floats that a kernel only loads, selects, negates (those of 16
    bits) and stores by integers of the same size. Cores compute with `f32`, so that floats are
    converted twice."""

    name: ClassVar[str] = "move-bits"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.locals:
            return tiled
        narrow = {b.dtype for b in kernel.parameters if b.dtype.is_narrow_float}
        for dtype in sorted(narrow):
            kernel = _moved(kernel, dtype) or kernel
        return tiled if kernel is tiled.kernel else evolve(tiled, kernel=kernel)


def _moved(kernel: Kernel, dtype: DType) -> Kernel | None:
    """Return the kernel with integers in place of floats of a type; None if it computes with
    them."""
    integer = DType.I16 if dtype.size == 2 else DType.U8
    moves = _Moves(kernel.storage, value_names(kernel), dtype, integer)
    stages = []
    for stage in kernel.stages:
        body: list[KernelStatement] = []
        for s in stage.body:
            if not moves.only_moved(s):
                return None
            body += moves.as_integers(s)
        stages.append(Stage(stage.level, tuple(body)))
    parameters = (evolve(b, dtype=integer) if b.dtype is dtype else b for b in kernel.parameters)
    return evolve(kernel, parameters=tuple(parameters), stages=tuple(stages))


@define(eq=False)
class _Moves:
    """The values so far that are floats of one narrow type, or equal to one in `f32`."""

    storage: Mapping[str, DType]
    fresh: Names
    dtype: DType
    integer: DType
    values: set[str] = field(factory=set)
    names: dict[str, str] = field(factory=dict)
    """The names of values in place of those that only convert them."""

    def only_moved(self, s: KernelStatement) -> bool:
        """Return whether a statement only moves such values."""
        operands = self.values.intersection(used(s))
        match s:
            case Let(op="where", dtype=result, args=args) if result is self.dtype or operands:
                return args[0] not in self.values and operands == {*args[1:]}
            case Let(op="cast", dtype=result) if operands:
                return result in (self.dtype, DType.F32)
            case Let(op=op) if operands:
                return op in _SIGN_OPS and self.dtype.size == 2
            case Const(value=value, dtype=result) if result is self.dtype:
                return is_zero(value)
            case Store(buffer=buffer, value=value, mode=StoreMode.SET):
                return (value in self.values) is (self.storage[buffer] is self.dtype)
            case Store(buffer=buffer):
                return self.storage[buffer] is not self.dtype and not operands
            case Load():
                return True
        return not operands and self.dtype not in types_of(s, self.storage).values()

    def as_integers(self, s: KernelStatement) -> tuple[KernelStatement, ...]:
        """Return the same of integers, and note what it defines."""
        moved = bool(self.values.intersection(used(s))) and isinstance(s, Let)
        moved |= self.dtype in types_of(s, self.storage).values()
        s = renamed(s, self.names, {})
        # Values of different stages may have the same name.
        self.values.difference_update(defined(s))
        for name in defined(s):
            self.names.pop(name, None)
        if not moved:
            return (s,)
        self.values.update(defined(s))
        match s:
            case Const():
                return (evolve(s, value=0, dtype=self.integer),)
            case Let(name, "cast", (arg,)):
                self.names[name] = arg
                return ()
            case Let(name, op, (arg,)):
                word, number = _SIGN_OPS[op]
                mask = Const(self.fresh.take(f"{name}_mask"), number, self.integer)
                return mask, Let(name, word, (arg, mask.name), self.integer)
            case Let():
                return (evolve(s, dtype=self.integer),)
        return (s,)
