"""Complex scalars in a traced body, as pairs of real scalars."""

from typing import Any

from attrs import evolve

from gyrator_ir.define import frozen
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import TensorValue


@frozen
class Pair:
    """A complex scalar whose operators round as ATen's do: products and sums round each operation,
    quotients use fused multiply-adds."""

    real: Value
    imag: Value

    def __add__(self, other: "Pair") -> "Pair":
        return Pair(self.real + other.real, self.imag + other.imag)

    def __sub__(self, other: "Pair") -> "Pair":
        return Pair(self.real - other.real, self.imag - other.imag)

    def __neg__(self) -> "Pair":
        return Pair(-self.real, -self.imag)

    def __mul__(self, other: "Pair") -> "Pair":
        a, b, c, d = self.real, self.imag, other.real, other.imag
        return Pair(a * c - b * d, a * d + b * c)

    def __truediv__(self, other: "Pair") -> "Pair":
        """The quotient by Smith's method: both parts are scaled by the larger part of the
        divisor."""
        a, b, c, d = self.real, self.imag, other.real, other.imag
        ops = a.ops
        size_c, size_d = ops.abs(c), ops.abs(d)
        wide = ops.ge(size_c, size_d)
        large, small = ops.where(wide, c, d), ops.where(wide, d, c)
        ratio = small / large
        scale = 1.0 / ops.fma(small, ratio, large)
        first, second = ops.where(wide, a, b), ops.where(wide, b, a)
        real = ops.fma(second, ratio, first) * scale
        imag = ops.where(wide, ops.fma(-a, ratio, b), ops.fma(b, ratio, -a)) * scale
        is_zero = ops.eq(size_c, 0.0) & ops.eq(size_d, 0.0)
        return Pair(ops.where(is_zero, a / size_c, real), ops.where(is_zero, b / size_c, imag))

    def part(self, which: int) -> Value:
        """Return the real (0) or the imaginary (1) part."""
        return self.imag if which else self.real


def pair_of(ops: Tracer, arg: Any, index: Index, dtype: DType) -> Pair:
    """Return an argument at an index of the result, its parts cast to `dtype`, with
    broadcasting."""
    if isinstance(arg, TensorValue) and arg.dtype.is_complex:
        return Pair(*(operand(ops, arg.part(which), index, dtype) for which in range(2)))
    if isinstance(arg, complex):
        return Pair(ops.const(arg.real, dtype), ops.const(arg.imag, dtype))
    return Pair(operand(ops, arg, index, dtype), ops.const(0.0, dtype))


def in_planes(
    b: LoopBuilder, real: TensorValue, imaginary: TensorValue, dtype: DType
) -> TensorValue:
    """Return the complex tensor whose parts are two buffers of the same layout.

    It has no buffer of its own until `LoopBuilder.join` creates one.
    """
    name = b.reserve(f"{real.buffer}_complex")
    tensor = evolve(real, buffer=name, dtype=dtype, planes=(real.buffer, imaginary.buffer))
    b.planar[name] = tensor
    b.devices[name] = real.device
    return tensor
