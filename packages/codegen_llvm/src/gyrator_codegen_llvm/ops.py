"""LLVM instructions for the ops of the op table.

Functions are calls of the C library, in `float` where its functions have an error of less than a
unit in the last place, else in `double`; a few are functions of `support` that LLVM vectorises.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gyrator_codegen_llvm.code import Code, Value
from gyrator_codegen_llvm.dtypes import STORAGE, TYPES, literal
from gyrator_ir.types import DType

Emitter = Callable[[Code, list[Value], DType], str]
"""Emits an op on operands, and returns its result, of a dtype."""

LACKING = frozenset({"erfinv", "lgamma", "digamma"})
"""Ops without an emitter."""
VECTORISED = frozenset({"exp", "tanh", "erf", "sigmoid"})
"""Functions of `float` in `support`."""
_SINGLE = frozenset("exp exp2 log log2 sin cos pow".split())
"""Functions of the C library that are accurate in `float`."""
_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh "
    "atanh erf erfc pow atan2 hypot"
).split()
_F64 = DType.F64


def cast(code: Code, v: Value, dtype: DType) -> str:
    """Emit the conversion of a value with eager semantics."""
    source = v.dtype
    if dtype in (source, source.compute):
        return v.text
    if dtype.is_narrow_float:
        single = Value(cast(code, v, DType.F32), DType.F32)
        return loaded(code, stored(code, single, dtype), dtype)
    a, word = v.typed, TYPES[dtype]
    if dtype is DType.BOOL:
        test = "fcmp une" if source.is_float else "icmp ne"
        return code.op(f"{test} {a}, {literal(0, source)}")
    if source.is_float:
        if dtype.is_float:
            return code.op(f"{'fpext' if dtype is _F64 else 'fptrunc'} {a} to {word}")
        return _to_integer(code, Value(v.text, source.compute), dtype)
    if dtype.is_float:
        return code.op(f"{'sitofp' if source.is_signed else 'uitofp'} {a} to {word}")
    if dtype.size == source.size and source is not DType.BOOL:
        return v.text
    if dtype.size < source.size:
        return code.op(f"trunc {a} to {word}")
    return code.op(f"{'sext' if source.is_signed else 'zext'} {a} to {word}")


def _to_integer(code: Code, v: Value, dtype: DType) -> str:
    """Emit the truncation of a float. Narrow integers wrap, since they go through a wider type."""
    if dtype is DType.U64:
        if v.dtype is not _F64:
            v = Value(code.op(f"fpext {v.typed} to double"), _F64)
        return code.op(f"call i64 @gy_to_u64({v.typed})")
    wide = "i32" if dtype.size < 4 or dtype is DType.I32 else "i64"
    # A number out of range gives any integer, but not a poisoned one.
    text = code.op(f"freeze {wide} {code.op(f'fptosi {v.typed} to {wide}')}")
    return text if wide == TYPES[dtype] else code.op(f"trunc {wide} {text} to {TYPES[dtype]}")


def stored(code: Code, v: Value, dtype: DType) -> str:
    """Emit the conversion of a value to the form that it has in memory, as elements of a dtype."""
    match dtype:
        case DType.BOOL:
            return code.op(f"zext i1 {v.text} to i8")
        case DType.F16:
            return code.op(f"fptrunc float {v.text} to half")
        case DType.BF16:
            return code.op(f"call i16 @gy_to_bf16(float {v.text})")
    return v.text


def loaded(code: Code, text: str, dtype: DType) -> str:
    """Emit the conversion of an element in memory to a value."""
    match dtype:
        case DType.BOOL:
            return code.op(f"icmp ne i8 {text}, 0")
        case DType.F16:
            return code.op(f"fpext half {text} to float")
        case DType.BF16:
            return code.op(f"call float @gy_from_bf16(i16 {text})")
    return text


def _bitcast(code: Code, args: list[Value], dtype: DType) -> str:
    (v,) = args
    if v.dtype is dtype:
        return v.text
    bits, word = stored(code, v, v.dtype), f"i{8 * dtype.size}"
    if STORAGE[v.dtype] != word:
        bits = code.op(f"bitcast {STORAGE[v.dtype]} {bits} to {word}")
    if STORAGE[dtype] != word:
        bits = code.op(f"bitcast {word} {bits} to {STORAGE[dtype]}")
    return loaded(code, bits, dtype)


def _arithmetic(on_floats: str, on_integers: str) -> Emitter:
    def emit(code: Code, args: list[Value], dtype: DType) -> str:
        word = on_floats if dtype.is_float else on_integers
        return code.op(f"{word} {args[0].typed}, {args[1].text}")

    return emit


def _intrinsic(name: str) -> Emitter:
    return lambda code, args, dtype: code.intrinsic(name, dtype, *args)


def _function(name: str) -> Emitter:
    """Return the emitter of a call of the C library, or of `support`."""

    def emit(code: Code, args: list[Value], dtype: DType) -> str:
        if dtype is _F64:
            return code.call(name, dtype, *args)
        if name in VECTORISED and code.vectorises:
            return code.call(f"gy_{name}", dtype, *args)
        if name in _SINGLE:
            return code.call(f"{name}f", dtype, *args)
        wide = [Value(cast(code, a, _F64), _F64) for a in args]
        return cast(code, Value(code.call(name, _F64, *wide), _F64), dtype)

    return emit


def _sigmoid(code: Code, args: list[Value], dtype: DType) -> str:
    if dtype is DType.F32 and code.vectorises:
        return code.call("gy_sigmoid", dtype, *args)
    x = Value(cast(code, args[0], _F64), _F64)
    power = code.call("exp", _F64, Value(code.op(f"fneg {x.typed}"), _F64))
    below = code.op(f"fadd double {power}, {literal(1, _F64)}")
    quotient = code.op(f"fdiv double {literal(1, _F64)}, {below}")
    return cast(code, Value(quotient, _F64), dtype)


def _rsqrt(code: Code, args: list[Value], dtype: DType) -> str:
    root = code.intrinsic("sqrt", dtype, *args)
    return code.op(f"fdiv {TYPES[dtype]} {literal(1, dtype)}, {root}")


def _named(f32: str, f64: str) -> Emitter:
    return lambda code, args, dtype: code.call(f32 if dtype is DType.F32 else f64, dtype, *args)


def _neg(code: Code, args: list[Value], dtype: DType) -> str:
    a = args[0]
    return code.op(f"fneg {a.typed}" if dtype.is_float else f"sub {TYPES[dtype]} 0, {a.text}")


def _abs(code: Code, args: list[Value], dtype: DType) -> str:
    if dtype.is_float:
        return code.intrinsic("fabs", dtype, *args)
    if not dtype.is_signed:
        return args[0].text
    word = TYPES[dtype]
    return code.op(f"call {word} @llvm.abs.{word}({args[0].typed}, i1 false)")


def _extreme(beyond: str, signed: str, unsigned: str, keep: int) -> Emitter:
    """Return the emitter of a minimum or maximum, which returns the first operand if it is `beyond`
    the second one, or if operand `keep` is NaN."""

    def emit(code: Code, args: list[Value], dtype: DType) -> str:
        if not dtype.is_float:
            return code.intrinsic(signed if dtype.is_signed else unsigned, dtype, *args)
        a, b = args
        nan = code.op(f"fcmp uno {args[keep].typed}, {args[keep].text}")
        first = code.op(f"or i1 {code.op(f'fcmp {beyond} {a.typed}, {b.text}')}, {nan}")
        return code.select(first, a.text, b.text, dtype)

    return emit


def _comparison(name: str) -> Emitter:
    def emit(code: Code, args: list[Value], dtype: DType) -> str:
        a, b = args
        if a.dtype.is_float:
            return code.op(f"fcmp {'une' if name == 'ne' else f'o{name}'} {a.typed}, {b.text}")
        sign = "" if name in ("eq", "ne") else "s" if a.dtype.is_signed else "u"
        return code.op(f"icmp {sign}{name} {a.typed}, {b.text}")

    return emit


def _shift(word: str) -> Emitter:
    def emit(code: Code, args: list[Value], dtype: DType) -> str:
        a, b = args
        most = str(8 * dtype.size - 1)
        near = code.op(f"icmp ule {b.typed}, {most}")
        by = code.select(near, b.text, most, dtype)
        if word == "shr" and dtype.is_signed:
            return code.op(f"ashr {a.typed}, {by}")
        shifted = code.op(f"{'shl' if word == 'shl' else 'lshr'} {a.typed}, {by}")
        return code.select(near, shifted, "0", dtype)

    return emit


def _divided(op: str) -> Emitter:
    """Return the emitter of a quotient or remainder of integers, which never traps."""

    def emit(code: Code, args: list[Value], dtype: DType) -> str:
        a, b = args
        word, sign = TYPES[dtype], "s" if dtype.is_signed else "u"
        bad = code.op(f"icmp eq {b.typed}, 0")
        minus = code.op(f"icmp eq {b.typed}, -1") if dtype.is_signed else ""
        if minus:
            bad = code.op(f"or i1 {bad}, {minus}")
        by = code.select(bad, "1", b.text, dtype)
        rest = code.op(f"{sign}rem {word} {a.text}, {by}")
        quotient = code.op(f"{sign}div {word} {a.text}, {by}")
        if minus:
            negative = code.op(f"sub {word} 0, {a.text}")
            quotient = code.select(minus, negative, quotient, dtype)
        if op == "truncdiv" or (op == "floordiv" and not minus):
            return quotient
        if op == "rem" or not minus:
            return rest
        signs = code.op(f"xor {word} {rest}, {b.text}")
        apart = code.op(f"icmp slt {word} {signs}, 0")
        inexact = code.op(f"icmp ne {word} {rest}, 0")
        wrong = code.op(f"and i1 {apart}, {inexact}")
        if op == "mod":
            return code.select(wrong, code.op(f"add {word} {rest}, {b.text}"), rest, dtype)
        return code.select(wrong, code.op(f"sub {word} {quotient}, 1"), quotient, dtype)

    return emit


def _remainder(code: Code, args: list[Value], dtype: DType) -> str:
    word, zero, (a, b) = TYPES[dtype], literal(0, dtype), args
    rest = code.op(f"frem {a.typed}, {b.text}")
    below = [code.op(f"fcmp olt {word} {x}, {zero}") for x in (rest, b.text)]
    apart = code.op(f"xor i1 {below[0]}, {below[1]}")
    inexact = code.op(f"fcmp une {word} {rest}, {zero}")
    wrong = code.op(f"and i1 {apart}, {inexact}")
    return code.select(wrong, code.op(f"fadd {word} {rest}, {b.text}"), rest, dtype)


def _isinf(code: Code, args: list[Value], dtype: DType) -> str:
    (a,) = args
    size = code.intrinsic("fabs", a.dtype, a)
    return code.op(f"fcmp oeq {TYPES[a.dtype]} {size}, {literal(float('inf'), a.dtype)}")


def _signbit(code: Code, args: list[Value], dtype: DType) -> str:
    word = f"i{8 * args[0].dtype.size}"
    return code.op(f"icmp slt {word} {code.op(f'bitcast {args[0].typed} to {word}')}, 0")


def _random(name: str) -> Emitter:
    return lambda code, args, dtype: code.call(f"gy_{name}", dtype, *args)


def _table() -> Mapping[str, Emitter]:
    table: dict[str, Emitter] = {
        "add": _arithmetic("fadd", "add"), "sub": _arithmetic("fsub", "sub"),
        "mul": _arithmetic("fmul", "mul"), "div": _arithmetic("fdiv", ""),
        "fmod": _arithmetic("frem", ""), "remainder": _remainder,
        "bit_and": _arithmetic("", "and"), "bit_or": _arithmetic("", "or"),
        "bit_xor": _arithmetic("", "xor"),
        "bit_not": lambda code, args, dtype: code.op(f"xor {args[0].typed}, {literal(-1, dtype)}"),
        "neg": _neg, "abs": _abs, "sigmoid": _sigmoid, "rsqrt": _rsqrt,
        "maximum": _extreme("ogt", "smax", "umax", 0), "fmax": _extreme("ogt", "smax", "umax", 1),
        "minimum": _extreme("olt", "smin", "umin", 0), "fmin": _extreme("olt", "smin", "umin", 1),
        "fma": _intrinsic("fma"), "sqrt": _intrinsic("sqrt"), "floor": _intrinsic("floor"),
        "ceil": _intrinsic("ceil"), "trunc": _intrinsic("trunc"), "round": _intrinsic("rint"),
        "copysign": _intrinsic("copysign"), "nextafter": _named("nextafterf", "nextafter"),
        "ldexp": _named("ldexpf", "ldexp"), "shl": _shift("shl"), "shr": _shift("shr"),
        "isnan": lambda code, args, dtype: code.op(f"fcmp uno {args[0].typed}, {args[0].text}"),
        "isinf": _isinf, "signbit": _signbit,
        "where": lambda code, args, dtype: code.select(
            args[0].text, args[1].text, args[2].text, dtype
        ),
        "cast": lambda code, args, dtype: cast(code, args[0], dtype), "bitcast": _bitcast,
    }  # fmt: skip
    table |= {name: _function(name) for name in _FUNCTIONS}
    table |= {name: _comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
    table |= {name: _divided(name) for name in ("floordiv", "truncdiv", "mod", "rem")}
    table |= {name: _random(name) for name in ("rand", "randn", "randint")}
    return MappingProxyType(table)


EMITTERS: Mapping[str, Emitter] = _table()
"""Emitters of all ops except those of `LACKING`."""
