"""Constants that all languages write alike."""

from gyrator_ir.types import DType


def wrapped(value: bool | int | float, dtype: DType) -> int:
    """Return an integer as a type of integers holds it: by its low bits."""
    bits = 8 * dtype.size
    number = int(value) & ((1 << bits) - 1)
    return number - (1 << bits) if dtype.is_signed and number >> (bits - 1) else number
