"""Every row of the op table as C++ text over the prelude's functions.

The same text serves vectors and scalars: the prelude overloads its functions for both.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_ir.types import BYTE_FLOATS, DType

Emit = Callable[[tuple[str, ...], tuple[DType, ...], DType, str], str]
"""(operand texts, their types, type of the result, `s` or `v`) -> text of the result."""


_WIDE = frozenset("exp exp2 expm1 sigmoid log log2 log10 log1p sin cos tan tanh erf".split())


def function(op: str, dtype: DType) -> str:
    """Return the prelude's function for the op of this name, for operands of `dtype`.

    What is long in float64 has a name of its own there: float32 kernels do without its text.
    """
    return f"gy_{op}_f64" if dtype is DType.F64 and op in _WIDE else f"gy_{op}"


def _named(op: str) -> Emit:
    return lambda args, types, dtype, form: (
        f"{function(op, types[0] if types else dtype)}({', '.join(args)})"
    )


def _form(text: str) -> Emit:
    return lambda args, types, dtype, form: text.format(*args, lane=lane_type(dtype))


def _bitwise(operator: str) -> Emit:
    # Narrow scalars are promoted to int; vectors keep their type.
    return lambda args, types, dtype, form: (
        f"{f'(s{lane_type(dtype)})' if form == 's' else ''}({args[0]} {operator} {args[1]})"
    )


def cast(text: str, source: DType, dtype: DType) -> str:
    """Return a conversion by value, as eager converts."""
    if source is dtype:
        return text
    if dtype.is_narrow_float:
        single = text if source.compute is DType.F32 else f"gy_to_f32({text})"
        if dtype in BYTE_FLOATS:
            return f"gy_{dtype.value}::round({single})"
        return f"gy_round_{dtype.value}({single})"
    if source.compute is dtype:
        return text
    return f"gy_to_{dtype.value}({text})"


def _bits_of(text: str, dtype: DType) -> str:
    """Return the bits of a value in an integer (or its own) lane type of the same size."""
    match dtype:
        case DType.BF16 | DType.F16:
            return f"gy_to_u16(gy_{dtype.value}_bits({text}))"
        case DType.BOOL:
            return f"gy_to_u8({text})"
    if dtype in BYTE_FLOATS:
        return f"gy_to_u8(gy_{dtype.value}::bits({text}))"
    return text


def _bitcast(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
    source = types[0]
    if source is dtype:
        return args[0]
    bits = _bits_of(args[0], source)
    match dtype:
        case DType.BF16 | DType.F16:
            wide = f"{form}u16" if form == "v" else "su32"
            return f"gy_{dtype.value}_value(({wide})gy_recast<{form}u16>({bits}))"
        case DType.BOOL:
            return f"gy_to_bool({bits})"
    if dtype in BYTE_FLOATS:
        return f"gy_{dtype.value}::value(gy_to_i32({bits}))"
    return f"gy_recast<{form}{dtype.value}>({bits})"


_SAME_NAME = """
    add sub mul div fma floordiv truncdiv fmod remainder neg abs maximum minimum fmax fmin
    sqrt floor ceil trunc round copysign nextafter exp exp2 expm1 log log2 log10 log1p sin cos tan
    sinh cosh tanh asin acos atan asinh acosh atanh erf erfc sigmoid rsqrt erfinv lgamma digamma pow
    atan2 hypot eq ne lt le gt ge shl shr isnan isinf signbit rand randn""".split()


EMITTERS: Mapping[str, Emit] = MappingProxyType(
    {name: _named(name) for name in _SAME_NAME}
    | {
        "mod": _form("gy_remainder({0}, {1})"),
        "rem": _form("gy_fmod({0}, {1})"),
        "ldexp": _form("gy_ldexp({0}, gy_to_{lane}({1}))"),
        "bit_and": _bitwise("&"),
        "bit_or": _bitwise("|"),
        "bit_xor": _bitwise("^"),
        "bit_not": _form("gy_bitnot({0})"),
        "where": _form("gy_select({0}, {1}, {2})"),
        "cast": lambda args, types, dtype, form: cast(args[0], types[0], dtype),
        "bitcast": _bitcast,
        "randint": _form("gy_randint64({0}, {1}, {2}, {3})"),
    }
)

UNIFORM_ARGS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"rand": (0,), "randn": (0,), "randint": (0, 2, 3)}
)
"""Operands that the prelude takes once for all lanes, by op."""
