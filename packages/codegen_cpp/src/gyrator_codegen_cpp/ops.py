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
    def emit(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
        return f"{function(op, types[0] if types else dtype)}({', '.join(args)})"

    return emit


def _call(name: str) -> Emit:
    def emit(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
        return f"{name}({', '.join(args)})"

    return emit


def _bitwise(operator: str) -> Emit:
    def emit(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
        text = f"{args[0]} {operator} {args[1]}"
        # Narrow scalars are promoted to int; vectors keep their type.
        return f"({form}{lane_type(dtype)})({text})" if form == "s" else f"({text})"

    return emit


def cast(text: str, source: DType, dtype: DType) -> str:
    """Return a conversion by value, as eager converts."""
    if source is dtype:
        return text
    if dtype.is_narrow_float:
        single = text if source.compute is DType.F32 else f"gy_to_f32({text})"
        if source is dtype:
            return single
        if dtype in BYTE_FLOATS:
            return f"gy_{dtype.value}::round({single})"
        return f"gy_round_{dtype.value}({single})"
    if source.compute is dtype:
        return text
    return f"gy_to_{dtype.value}({text})"


def _cast(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
    return cast(args[0], types[0], dtype)


def _bits_of(text: str, dtype: DType, form: str) -> str:
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
    bits = _bits_of(args[0], source, form)
    match dtype:
        case DType.BF16 | DType.F16:
            wide = f"{form}u16" if form == "v" else "su32"
            return f"gy_{dtype.value}_value(({wide})gy_recast<{form}u16>({bits}))"
        case DType.BOOL:
            return f"gy_to_bool({bits})"
    if dtype in BYTE_FLOATS:
        return f"gy_{dtype.value}::value(gy_to_i32({bits}))"
    return f"gy_recast<{form}{dtype.value}>({bits})"


def _ldexp(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
    return f"gy_ldexp({args[0]}, gy_to_{lane_type(dtype)}({args[1]}))"


def _mod(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
    return f"gy_remainder({args[0]}, {args[1]})"


def _rem(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
    return f"gy_fmod({args[0]}, {args[1]})"


_SAME_NAME = """
    add sub mul div fma floordiv truncdiv fmod remainder neg abs maximum minimum fmax fmin
    sqrt floor ceil trunc round copysign nextafter exp exp2 expm1 log log2 log10 log1p sin cos tan
    sinh cosh tanh asin acos atan asinh acosh atanh erf erfc sigmoid rsqrt erfinv lgamma digamma pow
    atan2 hypot eq ne lt le gt ge shl shr isnan isinf signbit rand randn""".split()


def _table() -> Mapping[str, Emit]:
    table: dict[str, Emit] = {name: _named(name) for name in _SAME_NAME}
    table |= {
        "mod": _mod,
        "rem": _rem,
        "ldexp": _ldexp,
        "bit_and": _bitwise("&"),
        "bit_or": _bitwise("|"),
        "bit_xor": _bitwise("^"),
        "bit_not": _call("gy_bitnot"),
        "where": _call("gy_select"),
        "cast": _cast,
        "bitcast": _bitcast,
        "randint": _call("gy_randint64"),
    }
    return MappingProxyType(table)


EMITTERS: Mapping[str, Emit] = _table()

UNIFORM_ARGS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"rand": (0,), "randn": (0,), "randint": (0, 2, 3)}
)
"""Operands that the prelude takes once for all lanes, by op."""
