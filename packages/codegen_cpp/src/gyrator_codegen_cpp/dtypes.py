"""Element types and literals as C++ text, in the words of the prelude."""

import math

from gyrator_codegen import round_to
from gyrator_codegen.constants import integer
from gyrator_ir.types import DType

STORAGE: dict[DType, str] = {
    d: f"s{d.value}" for d in DType if d.is_int or d in (DType.F32, DType.F64, DType.BOOL)
} | {d: f"gy_{d.value}" for d in DType if d.is_narrow_float}
"""Element type of a buffer in memory; types that are not here can't be in a kernel."""


def lane_type(dtype: DType) -> str:
    """Return the prelude's name, without `s` or `v`, of what holds a value of this type."""
    return dtype.compute.value


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a constant of the type, as an expression of its scalar lane type."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        return _float_literal(float(value), dtype)
    return integer(value, dtype)


def _float_literal(value: float, dtype: DType) -> str:
    value, suffix = round_to(value, dtype), "" if dtype is DType.F64 else "f"
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return f"{value!r}{suffix}"


RESERVED = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const
    constexpr const_cast continue decltype default delete do double dynamic_cast else enum explicit
    export extern false float for friend goto if inline int long mutable namespace new noexcept not
    not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short
    signed sizeof static static_assert static_cast struct switch template this thread_local throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq
    sf32 sf64 si8 si16 si32 si64 su8 su16 su32 su64 sbool
    vf32 vf64 vi8 vi16 vi32 vi64 vu8 vu16 vu32 vu64 vbool
    buffers sizes begin end shared lane live p count linux unix main""".split()
)
"""Names that a kernel's values may not have."""
