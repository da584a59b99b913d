"""Metal's names of element types, literals, and casts as eager does them."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from gyrator_codegen import round_to
from gyrator_codegen.constants import integer
from gyrator_ir.types import DType

TYPES: Mapping[DType, str] = MappingProxyType(
    {
        DType.F32: "float",
        DType.F16: "half",
        DType.BF16: "bfloat",
        DType.I64: "long",
        DType.I32: "int",
        DType.I16: "short",
        DType.I8: "char",
        DType.U64: "ulong",
        DType.U32: "uint",
        DType.U16: "ushort",
        DType.U8: "uchar",
        DType.BOOL: "bool",
    }
)
"""The types that Metal kernels compute on: there is no `f64`."""


def unsigned(dtype: DType) -> str:
    """Return the type in which integer arithmetic of a type wraps."""
    return "ulong" if dtype.size == 8 else "uint"


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a constant as Metal source; integers wrap to the type."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        text = _float(float(value))
        return text if dtype is DType.F32 else f"{TYPES[dtype]}({text})"
    return integer(value, dtype)


def _float(value: float) -> str:
    if math.isnan(value):
        return "NAN"
    single = round_to(value, DType.F32)
    if math.isinf(single):
        return "INFINITY" if single > 0 else "(-INFINITY)"
    return f"{single!r}f" if math.copysign(1, single) > 0 else f"({single!r}f)"


def cast(text: str, source: DType, target: DType) -> str:
    """Return the conversion by value of an atom or call.

    Through `f32` between narrow floats and other types; floats to small integers through a wider
    one, so that what fits neither wraps as eager's does.
    """
    if source is target:
        return text
    if source.is_narrow_float:
        return cast(f"float({text})", DType.F32, target)
    if target is DType.BOOL:
        return f"({text} != 0)"
    if target.is_narrow_float and source is not DType.F32:
        text = f"float({text})"
    if source.is_float and target.is_int:
        if target is DType.U64:
            return f"gy_to_ulong({text})"
        if target.size < 4:
            text = f"int({text})"
        elif target is DType.U32:
            text = f"long({text})"
    return f"{TYPES[target]}({text})"
