"""Triton expressions for all ops of the op table.

Basic operations use the correctly rounded forms (`tl.div_rn`, `tl.sqrt_rn`). Functions that the
hardware only approximates use the device's math library, which `libdevice` exposes under the same
names for NVIDIA and AMD. For example, `tl.exp` computes 2**(a * log2 e) with a rounded product,
with errors of tens of ulps for large arguments.
"""

from collections.abc import Mapping
from types import MappingProxyType

from gyrator_codegen.constants import FORMS, Emitter, bitcast, form
from gyrator_codegen_triton.dtypes import TYPES, cast
from gyrator_ir.types import DType


def _either(single: str, double: str) -> Emitter:
    """Return an emitter with separate forms for `f32` and `f64`."""

    return lambda args, types, dtype: (double if dtype is DType.F64 else single).format(*args)


def _neg(args: list[str], types: tuple[DType, ...], dtype: DType) -> str:
    # Triton computes -a as 0 - a, which loses the sign of 0.
    return f"{args[0]} * -1.0" if dtype.is_float else f"0 - {args[0]}"


def _by_sign(signed: str, unsigned: str) -> Emitter:
    return lambda args, types, dtype: (signed if dtype.is_signed else unsigned).format(*args)


def _bit_not(args: list[str], types: tuple[DType, ...], dtype: DType) -> str:
    if dtype is DType.BOOL:
        return f"{args[0]} == 0"
    ones = -1 if dtype.is_signed else (1 << 8 * dtype.size) - 1
    return f"{args[0]} ^ {ones}"


def _signbit(args: list[str], types: tuple[DType, ...], dtype: DType) -> str:
    word = "tl.int64" if types[0] is DType.F64 else "tl.int32"
    return f"{args[0]}.to({word}, bitcast=True) < 0"


def _shift(helper: str) -> Emitter:
    def emit(args: list[str], types: tuple[DType, ...], dtype: DType) -> str:
        name = helper if dtype.is_signed or helper == "gy_shl" else f"{helper}_unsigned"
        return f"{name}({args[0]}, {args[1]}, {8 * dtype.size})"

    return emit


def _table() -> Mapping[str, Emitter]:
    forms = {
        **FORMS,
        "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "fma": "tl.fma({0}, {1}, {2})",
        "truncdiv": "{0} // {1}", "rem": "{0} % {1}",
        "fmod": "libdevice.fmod({0}, {1})",
        "abs": "tl.abs({0})",
        "floor": "tl.floor({0})", "ceil": "tl.ceil({0})",
        "round": "libdevice.rint({0})",
        "copysign": "libdevice.copysign({0}, {1})", "nextafter": "libdevice.nextafter({0}, {1})",
        "digamma": "gy_digamma({0})",
        "ldexp": "libdevice.ldexp({0}, {1})",
        "bit_and": "{0} & {1}", "bit_or": "{0} | {1}", "bit_xor": "{0} ^ {1}",
        "isinf": 'tl.abs({0}) == float("inf")',
        "where": "tl.where({0}, {1}, {2})",
    }  # fmt: skip
    library = (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh "
        "atanh erf erfc erfinv lgamma trunc"
    )
    forms |= {name: f"libdevice.{name}({{0}})" for name in library.split()}
    forms |= {name: f"libdevice.{name}({{0}}, {{1}})" for name in ("pow", "atan2", "hypot")}
    table: dict[str, Emitter] = {name: form(text) for name, text in forms.items()}
    table["div"] = _either("tl.div_rn({0}, {1})", "{0} / {1}")
    table["sqrt"] = _either("tl.sqrt_rn({0})", "tl.sqrt({0})")
    table["rsqrt"] = _either("tl.div_rn(1.0, tl.sqrt_rn({0}))", "1.0 / tl.sqrt({0})")
    table["floordiv"] = _by_sign("gy_floor_div({0}, {1})", "{0} // {1}")
    table["mod"] = _by_sign("gy_floor_mod({0}, {1})", "{0} % {1}")
    table["neg"] = _neg
    table["bit_not"] = _bit_not
    table["signbit"] = _signbit
    table["shl"], table["shr"] = _shift("gy_shl"), _shift("gy_shr")
    table["cast"] = lambda args, types, dtype: cast(args[0], types[0], dtype)
    table["bitcast"] = lambda args, types, dtype: bitcast(
        args[0], types[0], dtype, TYPES[dtype], "{0}.to({1})", "{0}.to({1}, bitcast=True)"
    )
    return MappingProxyType(table)


EMITTERS: Mapping[str, Emitter] = _table()
"""Emitters of all ops."""

APPROXIMATE: Mapping[str, Emitter] = MappingProxyType({
    "div": form("{0} / {1}"),
    "exp": form("tl.exp({0})"),
    "rsqrt": form("1.0 / tl.sqrt_rn({0})"),
    "sigmoid": form("gy_sigmoid_approximate({0})"),
})  # fmt: skip
"""Emitters of some ops in `f32` if an error of a few ulps is acceptable. Square roots stay exact,
because the hardware's approximate ones flush subnormal numbers to 0."""

BY_RECIPROCAL = form("gy_divide_by_reciprocal({0}, {1})")
"""Emits a quotient in `f32` whose divisor is a block of fewer elements than the dividend."""
