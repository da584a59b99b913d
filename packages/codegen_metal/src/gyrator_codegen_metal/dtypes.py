"""Metal's dtypes, literals, and casts with eager semantics."""

from collections.abc import Mapping
from types import MappingProxyType

from gyrator_codegen import constants
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
"""Metal types of values. There is no `f64`."""


def unsigned(dtype: DType) -> str:
    """Return the unsigned type in which integer arithmetic wraps."""
    return "ulong" if dtype.size == 8 else "uint"


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a constant as Metal source. Integers wrap to the dtype."""
    if not dtype.is_float:
        return constants.literal(value, dtype, "", "", "")
    text = constants.literal(value, DType.F32, "NAN", "INFINITY", "f")
    text = f"({text})" if text.startswith("-") else text
    return text if dtype is DType.F32 else f"{TYPES[dtype]}({text})"


def cast(text: str, source: DType, target: DType) -> str:
    """Return the value conversion of an atom or call.

    Conversions between narrow floats and other types go through `f32`. Floats are converted to
    small integers through a wider type, so that out-of-range values wrap as in eager mode.
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
