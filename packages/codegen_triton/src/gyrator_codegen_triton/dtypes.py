"""Triton's names of element types, and casts as eager does them."""

from collections.abc import Mapping
from types import MappingProxyType

from gyrator_codegen.constants import wrapped
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
"""The types that Triton kernels compute on. A `bool` is a byte in memory and `int1` in a block;
floats of 8 bits are their bits, as eager and Triton round them in different ways."""

_SHORT = {"float": "fp", "bfloat": "bf", "int": "i", "uint": "u"}
"""Kinds of types, as signatures call them."""

_FORMS: Mapping[DType, str] = MappingProxyType(
    {
        DType.F8E4M3: "3, 7, 0x7E",
        DType.F8E5M2: "2, 15, 0x7C",
        DType.F8E4M3FNUZ: "3, 8, 0x7F",
        DType.F8E5M2FNUZ: "2, 16, 0x7F",
    }
)
"""Of a float of 8 bits: the bits of its mantissa, its exponent's bias, its largest magnitude."""

_HELD: Mapping[DType, str] = MappingProxyType(
    {DType.F8E4M3: "tl.float8e4nv", DType.F8E5M2: "tl.float8e5"}
)
"""Triton's names of floats of 8 bits that devices convert themselves."""


def pointer(dtype: DType) -> str:
    """Return what a signature calls a pointer to elements of a type."""
    name = TYPES[dtype].removeprefix("tl.")
    kind = name.rstrip("0123456789")
    return f"*{_SHORT[kind]}{name.removeprefix(kind)}"


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a constant as Triton source; integers wrap to the type."""
    if dtype is DType.BOOL:
        return repr(bool(value))
    if dtype.is_float:
        number = float(value)
        text = repr(number)
        return f'float("{text}")' if text in ("inf", "-inf", "nan") else text
    return str(wrapped(value, dtype))


def cast(text: str, source: DType, target: DType, converted: frozenset[DType] = frozenset()) -> str:
    """Return the conversion by value of an atom or call.

    Through `f32` between narrow floats and other types. What no integer of the target type is
    becomes what eager's kernels make of it: the nearest end of the range of a type of 32 or 64
    bits, of which narrower types take the low bits.
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
