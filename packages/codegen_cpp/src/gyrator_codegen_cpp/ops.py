"""C++ expressions for all ops of the op table, over functions of the prelude.

The prelude overloads its functions for vectors and scalars, so that both have the same text.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_ir.body.ops import OPS
from gyrator_ir.types import BYTE_FLOATS, DType

Emit = Callable[[tuple[str, ...], tuple[DType, ...], DType, str], str]
"""(operand texts, their types, type of the result, `s` or `v`) -> text of the result."""


_WIDE = frozenset(
    "exp exp2 expm1 sigmoid log log2 log10 log1p sin cos tan tanh erf erfc erfinv sinh cosh asinh "
    "acosh atanh asin acos atan atan2 hypot pow lgamma".split()
)


def function(op: str, dtype: DType) -> str:
    """Return the prelude's function for an op with operands of `dtype`.

    Long float64 implementations have separate names, so that float32 kernels do not include them.
    """
    return f"gy_{op}_f64" if dtype is DType.F64 and op in _WIDE else f"gy_{op}"


def _named(op: str) -> Emit:
    return lambda args, types, dtype, form: (
        f"{function(op, types[0] if types else dtype)}({', '.join(args)})"
    )


def _form(text: str) -> Emit:
    def emit(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
        lane = lane_type(dtype)
        # Narrow scalars are promoted to int; vectors keep their type.
        return text.format(*args, lane=lane, narrow=f"(s{lane})" if form == "s" else "")

    return emit


def cast(text: str, source: DType, dtype: DType) -> str:
    """Return a value conversion with eager semantics."""
    if dtype in (source, source.compute):
        return text
    if dtype.is_narrow_float:
        single = text if source.compute is DType.F32 else f"gy_to_f32({text})"
        if dtype in BYTE_FLOATS:
            return f"gy_{dtype.value}::round({single})"
        return f"gy_round_{dtype.value}({single})"
    return f"gy_to_{dtype.value}({text})"


_BITS = {d: f"gy_to_u8(gy_{d.value}::bits({{}}))" for d in BYTE_FLOATS} | {
    DType.BF16: "gy_to_u16(gy_bf16_bits({}))",
    DType.F16: "gy_to_u16(gy_f16_bits({}))",
    DType.BOOL: "gy_to_u8({})",
}
"""Bits of values that are represented in another type, as an integer lane type of their size."""


def _bitcast(args: tuple[str, ...], types: tuple[DType, ...], dtype: DType, form: str) -> str:
    if types[0] is dtype:
        return args[0]
    bits = _BITS.get(types[0], "{}").format(args[0])
    if dtype is DType.BOOL:
        return f"gy_to_bool({bits})"
    if dtype in BYTE_FLOATS:
        return f"gy_{dtype.value}::value(gy_to_i32({bits}))"
    if dtype.is_narrow_float:
        wide = f"{form}u16" if form == "v" else "su32"
        return f"gy_{dtype.value}_value(({wide})gy_recast<{form}u16>({bits}))"
    return f"gy_recast<{form}{dtype.value}>({bits})"


EMITTERS: Mapping[str, Emit] = MappingProxyType(
    {name: _named(name) for name in OPS}
    | {
        "mod": _form("gy_remainder({0}, {1})"),
        "rem": _form("gy_fmod({0}, {1})"),
        "ldexp": _form("gy_ldexp({0}, gy_to_{lane}({1}))"),
        "bit_and": _form("{narrow}({0} & {1})"),
        "bit_or": _form("{narrow}({0} | {1})"),
        "bit_xor": _form("{narrow}({0} ^ {1})"),
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
"""Indices of operands that must be the same for all lanes, by op."""
