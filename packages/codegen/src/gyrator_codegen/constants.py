"""Constants and casts that all languages write alike."""

from gyrator_ir.types import DType


def wrapped(value: bool | int | float, dtype: DType) -> int:
    """Return an integer as a type of integers holds it: by its low bits."""
    bits = 8 * dtype.size
    number = int(value) & ((1 << bits) - 1)
    return number - (1 << bits) if dtype.is_signed and number >> (bits - 1) else number


_SUFFIXES = {DType.I64: "L", DType.U64: "UL", DType.U32: "U"}


def integer(value: bool | int | float, dtype: DType) -> str:
    """Return a constant as C writes it where a `long` has 64 bits."""
    number = wrapped(value, dtype)
    if number == -(1 << 63):
        return "(-9223372036854775807L - 1)"
    text = f"{number}{_SUFFIXES.get(dtype, '')}"
    return text if number >= 0 else f"({text})"


def bitcast(
    text: str, source: DType, target: DType, name: str, converted: str, same_bits: str
) -> str:
    """Return the same bits as another type of the same size.

    Args:
        text: an atom or call.
        name: of the target type.
        converted: how a value `{0}` is converted to the type `{1}`.
        same_bits: how it is taken for one of the type.
    """
    if source is target:
        return text
    if target is DType.BOOL:
        return f"({text} != 0)"
    return (converted if source is DType.BOOL else same_bits).format(text, name)
