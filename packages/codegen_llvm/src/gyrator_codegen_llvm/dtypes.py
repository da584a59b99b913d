"""LLVM types of elements and values, constants, and casts with eager semantics.

A value of a narrow float type is held as `float`, rounded to the narrow type; a `bool` as `i1`.
"""

import struct
from collections.abc import Mapping
from types import MappingProxyType

from gyrator_codegen.rounding import round_to
from gyrator_ir.types import DType

_WIDE = {DType.F32: "float", DType.F64: "double"}
_INTS = {d: f"i{8 * d.size}" for d in DType if d.is_int}
STORAGE: Mapping[DType, str] = MappingProxyType(
    _WIDE | _INTS | {DType.BOOL: "i8", DType.F16: "half", DType.BF16: "i16"}
)
"""Types of elements in memory. Other dtypes are refused."""
TYPES: Mapping[DType, str] = MappingProxyType(
    _WIDE | _INTS | {DType.BOOL: "i1", DType.F16: "float", DType.BF16: "float"}
)
"""Types of values."""


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a constant of the type of a dtype's values. Integers wrap, floats are rounded."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        # LLVM spells a `float` by the bits of the `double` of the same value.
        number = round_to(float(value), dtype)
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    return str(dtype.wrap(int(value)))
