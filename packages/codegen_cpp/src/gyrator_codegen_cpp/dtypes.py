"""C++ names of dtypes, and literals, as defined by the prelude."""

from gyrator_codegen import constants
from gyrator_codegen.constants import CPP_WORDS
from gyrator_ir.types import DType

STORAGE: dict[DType, str] = {
    d: f"s{d.value}" for d in DType if d.is_int or d in (DType.F32, DType.F64, DType.BOOL)
} | {d: f"gy_{d.value}" for d in DType if d.is_narrow_float}
"""Element types of buffers in memory. Other dtypes cannot occur in a kernel."""


def lane_type(dtype: DType) -> str:
    """Return the prelude's type for values of a dtype, without the prefix `s` or `v`."""
    return dtype.compute.value


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a constant as an expression of the dtype's scalar lane type."""
    f = "" if dtype is DType.F64 else "f"
    return constants.literal(value, dtype, f'__builtin_nan{f}("")', f"__builtin_inf{f}()", f)


RESERVED = CPP_WORDS | frozenset(
    "sf32 sf64 si8 si16 si32 si64 su8 su16 su32 su64 sbool "
    "vf32 vf64 vi8 vi16 vi32 vi64 vu8 vu16 vu32 vu64 vbool "
    "buffers sizes begin end shared lane live p count linux unix main".split()
)
"""Names that a kernel's values must not have."""
