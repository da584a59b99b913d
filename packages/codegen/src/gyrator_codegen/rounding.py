"""Rounding of numbers to floating-point types."""

import math
import struct

from gyrator_ir.types import DType

CHOOSING = frozenset(("maximum", "minimum", "fmax", "fmin", "neg", "abs", "copysign"))
"""Ops whose result is one of their operands, up to its sign."""


def round_to(value: float, dtype: DType) -> float:
    """Return the value of `dtype` nearest to `value`, ties to even, overflow to infinity."""
    if dtype is DType.F64 or math.isnan(value) or math.isinf(value):
        return value
    try:
        if dtype is DType.F16:
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        single = float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype is not DType.BF16:
        return single
    bits: int = struct.unpack("<I", struct.pack("<f", single))[0]
    bits += 0x7FFF + ((bits >> 16) & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])
