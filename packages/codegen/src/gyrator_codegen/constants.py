"""Constants, ops, casts and reserved words that several languages have in common."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gyrator_codegen.rounding import round_to
from gyrator_ir.types import DType

CPP_WORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const "
    "const_cast constexpr continue decltype default delete do double dynamic_cast else enum "
    "explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using "
    "virtual void volatile wchar_t while xor xor_eq".split()
)
"""Reserved words of C++ and of languages derived from it."""


def is_zero(value: bool | int | float) -> bool:
    """Return whether all bits of a constant are zero, unlike the sign of minus zero."""
    return repr(value) in ("0", "0.0", "False")


def literal(value: bool | int | float, dtype: DType, nan: str, infinity: str, suffix: str) -> str:
    """Return a constant as text for languages derived from C.

    Args:
        value: the constant.
        dtype: its type.
        nan: the text of NaN of a floating-point type.
        infinity: the text of infinity of a floating-point type.
        suffix: the suffix of finite floats.
    """
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return integer(value, dtype)
    number = round_to(float(value), dtype)
    if math.isnan(number):
        return nan
    if math.isinf(number):
        return f"-{infinity}" if number < 0 else infinity
    return f"{number!r}{suffix}"


_SUFFIXES = {DType.I64: "L", DType.U64: "UL", DType.U32: "U"}


def integer(value: bool | int | float, dtype: DType) -> str:
    """Return an integer constant as C text, for a `long` of 64 bits."""
    number = dtype.wrap(int(value))
    if number == -(1 << 63):
        return "(-9223372036854775807L - 1)"
    text = f"{number}{_SUFFIXES.get(dtype, '')}"
    return text if number >= 0 else f"({text})"


def bitcast(
    text: str, source: DType, target: DType, name: str, converted: str, same_bits: str
) -> str:
    """Return the text of a bitcast to another type of the same size.

    Args:
        text: the operand, an atom or call.
        source: its type.
        target: the type of the result.
        name: the name of the target type.
        converted: format of a conversion of a value `{0}` to the type `{1}`.
        same_bits: format of a reinterpretation of a value `{0}` as the type `{1}`.
    """
    if source is target:
        return text
    if target is DType.BOOL:
        return f"({text} != 0)"
    return (converted if source is DType.BOOL else same_bits).format(text, name)


Emitter = Callable[[list[str], tuple[DType, ...], DType], str]
"""Returns the text of an op from those of its operands (atoms), their dtypes and the result's."""

FORMS: Mapping[str, str] = MappingProxyType({
    "remainder": "gy_remainder({0}, {1})",
    "maximum": "gy_maximum({0}, {1})", "minimum": "gy_minimum({0}, {1})",
    "fmax": "gy_fmax({0}, {1})", "fmin": "gy_fmin({0}, {1})",
    "sigmoid": "gy_sigmoid({0})",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}",
    "gt": "{0} > {1}", "ge": "{0} >= {1}", "isnan": "{0} != {0}",
    "rand": "gy_rand({0}, {1})", "randn": "gy_randn({0}, {1})",
    "randint": "gy_randint({0}, {1}, {2}, {3})",
})  # fmt: skip
"""Ops that operators of C and Python, or functions of a language's prelude, compute."""


def form(text: str) -> Emitter:
    """Return the emitter of an op whose text does not depend on dtypes."""
    return lambda args, types, dtype: text.format(*args)
