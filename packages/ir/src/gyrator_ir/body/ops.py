"""The op table: the scalar operations of kernels, one row per op.

Every op maps scalars to one scalar. Narrow floats (`DType.is_narrow_float`) can only be loaded,
stored, cast, selected and bitcast; arithmetic on them requires a `cast` to `f32`, so that each
rounding is explicit in the program. Integer arithmetic wraps.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType

from attrs import field

from gyrator_ir.checks import exactly, identifier, natural
from gyrator_ir.define import frozen
from gyrator_ir.types import DType


class Typing(StrEnum):
    """The relation between an op's operand types and its result type."""

    SAME = "same"
    """All operands and the result have the same type."""
    COMPARE = "compare"
    """Operands of the same type, result `bool`."""
    SELECT = "select"
    """`bool, T, T -> T`."""
    CAST = "cast"
    """Any type to any type, converting the value as in eager mode."""
    BITCAST = "bitcast"
    """Any type to a type of the same size, keeping the bits."""
    PREDICATE = "predicate"
    """One operand of any type, result `bool`."""
    RANDOM = "random"
    """`i64` operands (seed, counter, ...); the row's meaning states the result type."""
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
    """The accuracy of an op's result, in the result's type, on every backend."""

    EXACT = "exact"
    """The same bits on every backend."""
    ROUNDED = "rounded"
    """Correctly rounded (IEEE 754 basic operation), hence the same bits on every backend."""
    ULP = "ulp"
    """Within 1 unit in the last place in `f32` on backends with their own vector math functions,
    and as accurate as the platform's libm otherwise."""
    APPROX = "approx"
    """A few units in the last place, more near roots; the manual has measured figures."""


@frozen
class OpRow:
    """One scalar op."""

    name: str = field(validator=identifier)
    arity: int = field(validator=natural)
    typing: Typing = field(validator=exactly(Typing))
    domain: Domain = field(validator=exactly(Domain))
    numerics: Numerics = field(validator=exactly(Numerics))
    cost: int = field(validator=natural)
    """Approximate cost relative to an addition, for heuristics only."""
    meaning: str = field(validator=exactly(str))


def _rows(
    arity: int, typing: Typing, domain: Domain, numerics: Numerics, cost: int, **meanings: str
) -> Mapping[str, OpRow]:
    return {
        name: OpRow(name, arity, typing, domain, numerics, cost, meaning)
        for name, meaning in meanings.items()
    }


_SAME, _EXACT, _ROUNDED, _ULP = Typing.SAME, Numerics.EXACT, Numerics.ROUNDED, Numerics.ULP
_NUMBER, _FLOAT, _INT = Domain.NUMBER, Domain.FLOAT, Domain.INT
_BITS, _ANY = Domain.BITS, Domain.ANY


def _arithmetic() -> Iterator[Mapping[str, OpRow]]:
    yield _rows(2, _SAME, _NUMBER, _ROUNDED, 1, add="a + b", sub="a - b", mul="a * b")
    yield _rows(2, _SAME, _FLOAT, _ROUNDED, 4, div="a / b")
    yield _rows(3, _SAME, _FLOAT, _ROUNDED, 1, fma="a * b + c, rounded once")
    yield _rows(
        2, _SAME, _INT, _EXACT, 8,
        floordiv="quotient rounded towards minus infinity; divisor not 0",
        truncdiv="quotient rounded towards 0; divisor not 0",
        mod="a - floordiv(a, b) * b: the sign of b; divisor not 0",
        rem="a - truncdiv(a, b) * b: the sign of a; divisor not 0",
    )  # fmt: skip
    yield _rows(
        2, _SAME, _FLOAT, _ROUNDED, 10,
        fmod="C's fmod: the sign of a",
        remainder="fmod(a, b), plus b if it is not 0 and its sign differs from that of b",
    )  # fmt: skip
    yield _rows(
        1, _SAME, _NUMBER, _EXACT, 1,
        neg="-a",
        abs="absolute value; the smallest integer maps to itself",
    )  # fmt: skip
    yield _rows(
        2, _SAME, _NUMBER, _EXACT, 1,
        maximum="the larger, b if they are equal; NaN if either is NaN",
        minimum="the smaller, b if they are equal; NaN if either is NaN",
    )  # fmt: skip
    yield _rows(
        2, _SAME, _FLOAT, _EXACT, 1,
        fmax="the larger; the other one if one is NaN",
        fmin="the smaller; the other one if one is NaN",
    )  # fmt: skip
    yield _rows(1, _SAME, _FLOAT, _ROUNDED, 4, sqrt="square root")
    yield _rows(
        1, _SAME, _FLOAT, _EXACT, 1,
        floor="round towards minus infinity",
        ceil="round towards plus infinity",
        trunc="round towards 0",
        round="round to the nearest integer, halves to even",
    )  # fmt: skip
    yield _rows(
        2, _SAME, _FLOAT, _EXACT, 2,
        copysign="|a| with the sign of b",
        nextafter="the next float from a towards b",
    )  # fmt: skip


def _functions() -> Iterator[Mapping[str, OpRow]]:
    yield _rows(
        1, _SAME, _FLOAT, _ULP, 12,
        exp="e**a",
        exp2="2**a",
        expm1="e**a - 1",
        log="natural logarithm",
        log2="logarithm to base 2",
        log10="logarithm to base 10",
        log1p="log(1 + a)",
    )  # fmt: skip
    yield _rows(
        1, _SAME, _FLOAT, _ULP, 14,
        sin="sine of radians",
        cos="cosine of radians",
        tan="tangent of radians",
    )  # fmt: skip
    yield _rows(
        1, _SAME, _FLOAT, _ULP, 16,
        sinh="hyperbolic sine",
        cosh="hyperbolic cosine",
        tanh="hyperbolic tangent",
        asin="inverse sine",
        acos="inverse cosine",
        atan="inverse tangent",
        asinh="inverse hyperbolic sine",
        acosh="inverse hyperbolic cosine",
        atanh="inverse hyperbolic tangent",
    )  # fmt: skip
    yield _rows(
        1, _SAME, _FLOAT, _ULP, 14,
        erf="error function",
        erfc="1 - erf(a)",
        sigmoid="1 / (1 + exp(-a))",
        rsqrt="1 / sqrt(a)",
    )  # fmt: skip
    yield _rows(
        1, _SAME, _FLOAT, Numerics.APPROX, 40,
        erfinv="inverse of erf",
        lgamma="log |gamma(a)|",
        digamma="derivative of lgamma",
    )  # fmt: skip
    yield _rows(
        2, _SAME, _FLOAT, _ULP, 30,
        pow="a**b as C's pow",
        atan2="angle of the point (b, a)",
        hypot="sqrt(a*a + b*b)",
    )  # fmt: skip
    yield _rows(2, Typing.EXPONENT, _FLOAT, _EXACT, 3, ldexp="a * 2**b")


def _comparisons_and_bits() -> Iterator[Mapping[str, OpRow]]:
    yield _rows(
        2, Typing.COMPARE, _ANY, _EXACT, 1,
        eq="a == b", ne="a != b", lt="a < b", le="a <= b", gt="a > b", ge="a >= b",
    )  # fmt: skip
    yield _rows(
        2, _SAME, _BITS, _EXACT, 1,
        bit_and="bitwise (for bool: logical) and",
        bit_or="bitwise or",
        bit_xor="bitwise exclusive or",
    )  # fmt: skip
    yield _rows(1, _SAME, _BITS, _EXACT, 1, bit_not="bitwise (for bool: logical) not")
    yield _rows(
        2, _SAME, _INT, _EXACT, 1,
        shl="shift left; 0 if the amount is negative or not less than the width",
        shr="shift right, arithmetic for signed types; only sign bits for amounts out of range",
    )  # fmt: skip
    yield _rows(
        1, Typing.PREDICATE, _FLOAT, _EXACT, 1,
        isnan="is NaN",
        isinf="is plus or minus infinity",
        signbit="the sign bit is set",
    )  # fmt: skip


def _selections_and_conversions() -> Iterator[Mapping[str, OpRow]]:
    yield _rows(3, Typing.SELECT, _ANY, _EXACT, 1, where="b if a else c")
    yield _rows(1, Typing.CAST, _ANY, _ROUNDED, 1, cast="convert the value as in eager mode")
    yield _rows(1, Typing.BITCAST, _ANY, _EXACT, 1, bitcast="the same bits as another type")


def _random() -> Iterator[Mapping[str, OpRow]]:
    yield _rows(
        2, Typing.RANDOM, _INT, _ULP, 40,
        rand="Philox4x32-10 (key a, counter b div 4), word b mod 4: f32 uniform in [0, 1), 24 bits",
        randn="Philox4x32-10 (key a, counter b div 4): f32 standard normal by Box-Muller",
    )  # fmt: skip
    yield _rows(
        4, Typing.RANDOM, _INT, _EXACT, 40,
        randint="Philox4x32-10 (key a, counter b): i64 in [c, d), c plus 64 bits modulo d - c",
    )  # fmt: skip


def _table() -> Mapping[str, OpRow]:
    table: dict[str, OpRow] = {}
    families = (
        _arithmetic, _functions, _comparisons_and_bits, _selections_and_conversions, _random,
    )  # fmt: skip
    for family in families:
        for rows in family():
            if duplicates := table.keys() & rows:
                raise AssertionError(f"rows occur twice: {sorted(duplicates)}")
            table |= rows
    return MappingProxyType(table)


OPS: Mapping[str, OpRow] = _table()


def result_dtype(op: str, operands: tuple[DType, ...], declared: DType) -> str | None:
    """Return an error message if `op` cannot be applied to operands of these types, else None.

    `declared` is the result type that the program states.
    """
    row = OPS[op]
    if len(operands) != row.arity:
        return f"{op!r} takes {row.arity} operand(s), got {len(operands)}"
    match row.typing:
        case Typing.SAME:
            expected, result = (declared,) * row.arity, declared
            subject = declared
        case Typing.COMPARE:
            expected, result, subject = (operands[0],) * 2, DType.BOOL, operands[0]
        case Typing.SELECT:
            expected, result, subject = (DType.BOOL, declared, declared), declared, declared
        case Typing.CAST:
            expected, result, subject = operands, declared, declared
        case Typing.BITCAST:
            if operands[0].size != declared.size:
                return f"bitcast from {operands[0]} to {declared} changes the size"
            return None
        case Typing.PREDICATE:
            expected, result, subject = operands, DType.BOOL, operands[0]
        case Typing.RANDOM:
            expected = (DType.I64,) * row.arity
            result = DType.I64 if op == "randint" else DType.F32
            subject = DType.I64
        case Typing.EXPONENT:
            expected, result, subject = (declared, DType.I32), declared, declared
    if operands != expected:
        return f"{op!r} takes operands {_names(expected)}, got {_names(operands)}"
    if result != declared:
        return f"{op!r} returns {result}, not {declared}"
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
