"""The op table: what a kernel can compute from scalar values, one row an op.

Every op maps scalars to one scalar. Narrow floats (`DType.is_narrow_float`) are only moved: loaded,
stored, cast, selected and bitcast; arithmetic on them is done after a `cast` to `f32`, so that each
rounding is visible in the program. Integer arithmetic wraps.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from attrs import field, frozen

from gyrator_ir.checks import exactly, identifier, natural
from gyrator_ir.types import DType


class Typing(StrEnum):
    """How operand and result types of an op relate."""

    SAME = "same"
    """All operands and the result have one type."""
    COMPARE = "compare"
    """Operands of one type, result `bool`."""
    SELECT = "select"
    """`bool, T, T -> T`."""
    CAST = "cast"
    """Any type to any type, by value, as eager converts."""
    BITCAST = "bitcast"
    """Any type to a type of the same size, by bits."""
    PREDICATE = "predicate"
    """One operand of any type, result `bool`."""
    RANDOM = "random"
    """`i64` operands (seed, counter, ...), result of the type that the row's meaning names."""
    EXPONENT = "exponent"
    """`T, i32 -> T`."""


class Domain(StrEnum):
    """Element types an op computes on."""

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"
    NUMBER = "number"
    """Floats and integers."""
    BITS = "bits"
    """Integers and bool."""
    ANY = "any"


class Numerics(StrEnum):
    """How close every backend's result is to the exact one, in the result's type."""

    EXACT = "exact"
    """The same bits everywhere."""
    ROUNDED = "rounded"
    """The correctly rounded result (IEEE 754 basic operation): the same bits everywhere."""
    ULP = "ulp"
    """Within 1 unit in the last place in `f32` on backends with their own vector maths, and
    within what the platform's libm gives otherwise."""
    APPROX = "approx"
    """A few units in the last place, more near roots; the manual has the measured figures."""


@frozen
class OpRow:
    """One scalar op."""

    name: str = field(validator=identifier)
    arity: int = field(validator=natural)
    typing: Typing = field(validator=exactly(Typing))
    domain: Domain = field(validator=exactly(Domain))
    numerics: Numerics = field(validator=exactly(Numerics))
    cost: int = field(validator=natural)
    """Rough price of one evaluation, an addition being 1: for heuristics only."""
    meaning: str = field(validator=exactly(str))


def _rows() -> Mapping[str, OpRow]:
    table: dict[str, OpRow] = {}

    def add(
        names: str,
        arity: int,
        typing: Typing,
        domain: Domain,
        numerics: Numerics,
        cost: int,
        **meanings: str,
    ) -> None:
        for name in names.split():
            table[name] = OpRow(name, arity, typing, domain, numerics, cost, meanings.pop(name))
        if meanings:
            raise AssertionError(f"meanings without a row: {sorted(meanings)}")

    same, exact, rounded, ulp = Typing.SAME, Numerics.EXACT, Numerics.ROUNDED, Numerics.ULP
    number, flt, integer, bits = Domain.NUMBER, Domain.FLOAT, Domain.INT, Domain.BITS
    add("add sub mul", 2, same, number, rounded, 1, add="a + b", sub="a - b", mul="a * b")
    add("div", 2, same, flt, rounded, 4, div="a / b")
    add("fma", 3, same, flt, rounded, 1, fma="a * b + c, rounded once")
    add(
        "floordiv truncdiv mod rem",
        2,
        same,
        integer,
        exact,
        8,
        floordiv="quotient rounded to minus infinity; divisor not 0",
        truncdiv="quotient rounded to 0; divisor not 0",
        mod="a - floordiv(a, b) * b: the sign of b; divisor not 0",
        rem="a - truncdiv(a, b) * b: the sign of a; divisor not 0",
    )
    add(
        "fmod remainder",
        2,
        same,
        flt,
        rounded,
        10,
        fmod="C's fmod: the sign of a",
        remainder="fmod(a, b), plus b where that is not 0 and its sign is not b's",
    )
    add(
        "neg abs",
        1,
        same,
        number,
        exact,
        1,
        neg="-a",
        abs="absolute value; the smallest integer maps to itself",
    )
    add(
        "maximum minimum",
        2,
        same,
        number,
        exact,
        1,
        maximum="the larger; NaN if either is NaN",
        minimum="the smaller; NaN if either is NaN",
    )
    add(
        "fmax fmin",
        2,
        same,
        flt,
        exact,
        1,
        fmax="the larger; the other one if either is NaN",
        fmin="the smaller; the other one if either is NaN",
    )
    add("sqrt", 1, same, flt, rounded, 4, sqrt="square root")
    add(
        "floor ceil trunc round",
        1,
        same,
        flt,
        exact,
        1,
        floor="to minus infinity",
        ceil="to plus infinity",
        trunc="to 0",
        round="to the nearest integer, halves to even",
    )
    add(
        "copysign nextafter",
        2,
        same,
        flt,
        exact,
        2,
        copysign="|a| with the sign of b",
        nextafter="the next float from a towards b",
    )
    add(
        "exp exp2 expm1 log log2 log10 log1p",
        1,
        same,
        flt,
        ulp,
        12,
        exp="e**a",
        exp2="2**a",
        expm1="e**a - 1",
        log="natural logarithm",
        log2="logarithm to base 2",
        log10="logarithm to base 10",
        log1p="log(1 + a)",
    )
    add(
        "sin cos tan",
        1,
        same,
        flt,
        ulp,
        14,
        sin="sine of radians",
        cos="cosine of radians",
        tan="tangent of radians",
    )
    add(
        "sinh cosh tanh asin acos atan asinh acosh atanh",
        1,
        same,
        flt,
        ulp,
        16,
        sinh="hyperbolic sine",
        cosh="hyperbolic cosine",
        tanh="hyperbolic tangent",
        asin="inverse sine",
        acos="inverse cosine",
        atan="inverse tangent",
        asinh="inverse hyperbolic sine",
        acosh="inverse hyperbolic cosine",
        atanh="inverse hyperbolic tangent",
    )
    add(
        "erf erfc sigmoid rsqrt",
        1,
        same,
        flt,
        ulp,
        14,
        erf="error function",
        erfc="1 - erf(a)",
        sigmoid="1 / (1 + exp(-a))",
        rsqrt="1 / sqrt(a)",
    )
    add(
        "erfinv lgamma digamma",
        1,
        same,
        flt,
        Numerics.APPROX,
        40,
        erfinv="inverse of erf",
        lgamma="log |gamma(a)|",
        digamma="derivative of lgamma",
    )
    add(
        "pow atan2 hypot",
        2,
        same,
        flt,
        ulp,
        30,
        pow="a**b as C's pow",
        atan2="angle of the point (b, a)",
        hypot="sqrt(a*a + b*b)",
    )
    add("ldexp", 2, Typing.EXPONENT, flt, exact, 3, ldexp="a * 2**b")
    compare = Typing.COMPARE
    add(
        "eq ne lt le gt ge",
        2,
        compare,
        Domain.ANY,
        exact,
        1,
        eq="a == b",
        ne="a != b",
        lt="a < b",
        le="a <= b",
        gt="a > b",
        ge="a >= b",
    )
    add(
        "bit_and bit_or bit_xor",
        2,
        same,
        bits,
        exact,
        1,
        bit_and="bitwise (for bool: logical) and",
        bit_or="bitwise or",
        bit_xor="bitwise exclusive or",
    )
    add("bit_not", 1, same, bits, exact, 1, bit_not="bitwise (for bool: logical) not")
    add(
        "shl shr",
        2,
        same,
        integer,
        exact,
        1,
        shl="shift left; 0 where the amount is negative or not below the width",
        shr="shift right, arithmetic for signed types; the sign fills in for amounts outside",
    )
    add(
        "isnan isinf signbit",
        1,
        Typing.PREDICATE,
        flt,
        exact,
        1,
        isnan="is NaN",
        isinf="is plus or minus infinity",
        signbit="the sign bit is set",
    )
    add("where", 3, Typing.SELECT, Domain.ANY, exact, 1, where="b if a else c")
    add("cast", 1, Typing.CAST, Domain.ANY, rounded, 1, cast="convert by value, as eager converts")
    add("bitcast", 1, Typing.BITCAST, Domain.ANY, exact, 1, bitcast="the same bits as another type")
    add(
        "rand randn",
        2,
        Typing.RANDOM,
        Domain.INT,
        Numerics.ULP,
        40,
        rand="Philox4x32-10 (key a, counter b): f32 uniform in [0, 1), 24 random bits",
        randn="Philox4x32-10 (key a, counter b): f32 standard normal by Box-Muller",
    )
    add(
        "randint",
        4,
        Typing.RANDOM,
        Domain.INT,
        exact,
        40,
        randint="Philox4x32-10 (key a, counter b): i64 in [c, d), c plus 64 bits modulo d - c",
    )
    return MappingProxyType(table)


OPS: Mapping[str, OpRow] = _rows()


def result_dtype(op: str, operands: tuple[DType, ...], declared: DType) -> str | None:
    """Return what is wrong with applying `op` to values of these types, or None.

    `declared` is the result type that the program states.
    """
    row = OPS[op]
    if len(operands) != row.arity:
        return f"{op!r} takes {row.arity} operand(s), got {len(operands)}"
    match row.typing:
        case Typing.SAME:
            wanted, result = (declared,) * row.arity, declared
            subject = declared
        case Typing.COMPARE:
            wanted, result, subject = (operands[0],) * 2, DType.BOOL, operands[0]
        case Typing.SELECT:
            wanted, result, subject = (DType.BOOL, declared, declared), declared, declared
        case Typing.CAST:
            wanted, result, subject = operands, declared, declared
        case Typing.BITCAST:
            if operands[0].size != declared.size:
                return f"bitcast from {operands[0]} to {declared} changes the size"
            return None
        case Typing.PREDICATE:
            wanted, result, subject = operands, DType.BOOL, operands[0]
        case Typing.RANDOM:
            wanted = (DType.I64,) * row.arity
            result = DType.I64 if op == "randint" else DType.F32
            subject = DType.I64
        case Typing.EXPONENT:
            wanted, result, subject = (declared, DType.I32), declared, declared
    if operands != wanted:
        return f"{op!r} wants operands {_names(wanted)}, got {_names(operands)}"
    if result != declared:
        return f"{op!r} gives {result}, not {declared}"
    moves = row.typing in (Typing.SELECT, Typing.CAST)
    if not moves and not _in_domain(subject, row.domain):
        return f"{op!r} computes on {row.domain} types, not {subject}"
    if subject.is_complex:
        return f"{op!r} on {subject}: kernels do not compute on complex types"
    return None


def _in_domain(dtype: DType, domain: Domain) -> bool:
    if dtype.is_narrow_float:
        return False
    match domain:
        case Domain.FLOAT:
            return dtype.is_float
        case Domain.INT:
            return dtype.is_int
        case Domain.BOOL:
            return dtype is DType.BOOL
        case Domain.NUMBER:
            return dtype.is_float or dtype.is_int
        case Domain.BITS:
            return dtype.is_int or dtype is DType.BOOL
        case Domain.ANY:
            return True


def _names(dtypes: tuple[DType, ...]) -> str:
    return f"({', '.join(dtypes)})"
