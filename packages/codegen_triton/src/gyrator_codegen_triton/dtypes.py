"""Triton's dtypes, and casts with eager semantics."""

from collections.abc import Mapping
from types import MappingProxyType

from gyrator_ir.types import BYTE_FLOATS, DType

TYPES: Mapping[DType, str] = MappingProxyType(
    {
        DType.F64: "tl.float64",
        DType.F32: "tl.float32",
        DType.F16: "tl.float16",
        DType.BF16: "tl.bfloat16",
        DType.I64: "tl.int64",
        DType.I32: "tl.int32",
        DType.I16: "tl.int16",
        DType.I8: "tl.int8",
        DType.U64: "tl.uint64",
        DType.U32: "tl.uint32",
        DType.U16: "tl.uint16",
        DType.U8: "tl.uint8",
        DType.BOOL: "tl.int1",
        **dict.fromkeys(BYTE_FLOATS, "tl.uint8"),
    }
)
"""Triton types of values. A `bool` is a byte in memory and `int1` in a block. 8-bit floats are
represented by their bits, because eager and Triton round them differently."""

_SHORT = {"float": "fp", "bfloat": "bf", "int": "i", "uint": "u"}
"""Abbreviations of type kinds in signatures."""

_FORMS: Mapping[DType, str] = MappingProxyType(
    {
        DType.F8E4M3: "3, 7, 0x7E",
        DType.F8E5M2: "2, 15, 0x7C",
        DType.F8E4M3FNUZ: "3, 8, 0x7F",
        DType.F8E5M2FNUZ: "2, 16, 0x7F",
    }
)
"""Format of each 8-bit float: mantissa bits, exponent bias, and largest magnitude."""

_HELD: Mapping[DType, str] = MappingProxyType(
    {DType.F8E4M3: "tl.float8e4nv", DType.F8E5M2: "tl.float8e5"}
)
"""Triton types of 8-bit floats with hardware conversions."""


def pointer(dtype: DType) -> str:
    """Return the signature's name of a pointer to elements of a dtype."""
    name = TYPES[dtype].removeprefix("tl.")
    kind = name.rstrip("0123456789")
    return f"*{_SHORT[kind]}{name.removeprefix(kind)}"


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a constant as Triton source. Integers wrap to the dtype."""
    if dtype is DType.BOOL:
        return repr(bool(value))
    if dtype.is_float:
        number = float(value)
        text = repr(number)
        return f'float("{text}")' if text in ("inf", "-inf", "nan") else text
    return str(dtype.wrap(int(value)))


def cast(text: str, source: DType, target: DType, converted: frozenset[DType] = frozenset()) -> str:
    """Return the value conversion of an atom or call.

    Conversions between narrow floats and other types go through `f32`. Floats outside of the range
    of an integer type saturate to a 32- or 64-bit type, of which narrower types take the low bits,
    as in eager mode.
    """
    if source is target:
        return text
    if source in _FORMS and target is not DType.F32:
        return cast(cast(text, source, DType.F32, converted), DType.F32, target, converted)
    if target is DType.BOOL:
        return f"({text} != 0)"
    if source.is_narrow_float and target is not DType.F32:
        return cast(cast(text, source, DType.F32, converted), DType.F32, target, converted)
    if target.is_narrow_float and source is not DType.F32:
        return cast(cast(text, source, DType.F32, converted), DType.F32, target, converted)
    if source in converted:
        return f"{text}.to({_HELD[source]}, bitcast=True).to(tl.float32)"
    if target in converted:
        bits = f"{text}.to({_HELD[target]}).to(tl.uint8, bitcast=True)"
        return f"gy_overflowed({bits}, {text})" if target is DType.F8E5M2 else bits
    if source in _FORMS:
        return f"gy_byte_float_value({text}, {_FORMS[source]})"
    if target in _FORMS:
        return f"gy_byte_float_bits({text}, {_FORMS[target]})"
    if source.is_float and target.is_int and target.size < 4:
        wider = "tl.uint32" if target is DType.U16 else "tl.int32"
        return f"{text}.to({wider}).to({TYPES[target]})"
    return f"{text}.to({TYPES[target]})"
