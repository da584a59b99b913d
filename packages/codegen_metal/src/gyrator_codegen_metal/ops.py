"""Metal expressions for the ops of the op table.

Functions that the hardware approximates use `metal::precise`. Metal's `fmod` rounds its quotient,
so that `gy_fmod` implements it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from gyrator_codegen.constants import FORMS, Emitter, bitcast, form
from gyrator_codegen_metal.dtypes import TYPES, cast, unsigned
from gyrator_ir.types import DType


def _arithmetic(operator: str) -> Emitter:
    def emit(args: list[str], types: tuple[DType, ...], dtype: DType) -> str:
        if dtype.is_float:
            return f"{args[0]} {operator} {args[1]}"
        word = unsigned(dtype)
        return f"{TYPES[dtype]}({word}({args[0]}) {operator} {word}({args[1]}))"

    return emit


def _integer(text: str) -> Emitter:
    """Return an emitter that converts its result to the dtype, since narrow operands are
    promoted."""
    return lambda args, types, dtype: f"{TYPES[dtype]}({text.format(*args)})"


def _neg(args: list[str], types: tuple[DType, ...], dtype: DType) -> str:
    return f"-{args[0]}" if dtype.is_float else f"{TYPES[dtype]}(-{unsigned(dtype)}({args[0]}))"


def _abs(args: list[str], types: tuple[DType, ...], dtype: DType) -> str:
    if dtype.is_float:
        return f"fabs({args[0]})"
    return f"({args[0]} < 0 ? {_neg(args, types, dtype)} : {args[0]})"


def _bit_not(args: list[str], types: tuple[DType, ...], dtype: DType) -> str:
    return f"!{args[0]}" if dtype is DType.BOOL else f"{TYPES[dtype]}(~{args[0]})"


def _table() -> Mapping[str, Emitter]:
    forms = {
        **FORMS,
        "div": "{0} / {1}", "fma": "fma({0}, {1}, {2})",
        "floordiv": "gy_floor_div({0}, {1})", "mod": "gy_floor_mod({0}, {1})",
        "truncdiv": "gy_div({0}, {1})", "rem": "gy_rem({0}, {1})",
        "fmod": "gy_fmod({0}, {1})",
        "floor": "floor({0})", "ceil": "ceil({0})", "trunc": "trunc({0})", "round": "rint({0})",
        "copysign": "copysign({0}, {1})", "nextafter": "gy_nextafter({0}, {1})",
        "ldexp": "ldexp({0}, {1})", "rsqrt": "1.0f / precise::sqrt({0})",
        "expm1": "gy_expm1({0})", "log1p": "gy_log1p({0})", "erf": "gy_erf({0})",
        "hypot": "gy_hypot({0}, {1})",
        "shl": "gy_shl({0}, {1})", "shr": "gy_shr({0}, {1})",
        "isinf": "fabs({0}) == INFINITY",
        "signbit": "as_type<int>({0}) < 0",
        "where": "({0} ? {1} : {2})",
    }  # fmt: skip
    precise = (
        "sqrt exp exp2 log log2 log10 sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh"
    )
    forms |= {name: f"precise::{name}({{0}})" for name in precise.split()}
    forms |= {name: f"precise::{name}({{0}}, {{1}})" for name in ("pow", "atan2")}
    table: dict[str, Emitter] = {name: form(text) for name, text in forms.items()}
    table |= {name: _arithmetic(c) for name, c in (("add", "+"), ("sub", "-"), ("mul", "*"))}
    for name, operator in (("bit_and", "&"), ("bit_or", "|"), ("bit_xor", "^")):
        table[name] = _integer(f"{{0}} {operator} {{1}}")
    table |= {"neg": _neg, "abs": _abs, "bit_not": _bit_not}
    table["cast"] = lambda args, types, dtype: cast(args[0], types[0], dtype)
    table["bitcast"] = lambda args, types, dtype: bitcast(
        args[0], types[0], dtype, TYPES[dtype], "{1}({0})", "as_type<{1}>({0})"
    )
    return MappingProxyType(table)


EMITTERS: Mapping[str, Emitter] = _table()
"""Emitters of all ops except `erfc`, `erfinv`, `lgamma` and `digamma`."""
