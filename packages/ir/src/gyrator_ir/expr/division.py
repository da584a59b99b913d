"""Floor division and remainder in normal form, without facts.

Quotient and remainder are reduced in the same way, so that they remain recognisable as a pair:
multiples of the divisor are extracted from the numerator, common factors are cancelled, and for an
integer divisor `c` the constant is reduced to [0, c) and the first coefficient made positive. Every
rule is an identity of floor division for all values of the symbols with `b != 0`.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

from gyrator_ir.expr.build import CACHE_SIZE, Terms, add, factors_of, mul, sum_of_terms, terms_of
from gyrator_ir.expr.nodes import (
    MINUS_ONE,
    ONE,
    ZERO,
    Add,
    Const,
    Expr,
    FloorDiv,
    Mod,
    Sym,
    expr,
    expr_error,
    raw_add,
    raw_mul,
    raw_pair,
)
from gyrator_ir.expr.recombine import divide_monomials

_LARGE = 1 << 31
"""A coefficient below this times an index or a size fits in 64 bits."""


def _zero_divisor() -> Exception:
    return expr_error(
        "GY-EXPR-002", "division by the constant zero", help="guard the division with where(...)"
    )


@lru_cache(CACHE_SIZE)
def floordiv(a: Expr, b: Expr) -> Expr:
    """Return `a // b`, rounded towards minus infinity.

    Raises:
        ExprError: GY-EXPR-002, when `b` is the constant zero.
    """
    if type(b) is Const:
        value = b.value
        if value <= 1:
            if value == 0:
                raise _zero_divisor()
            return a if value == 1 else floordiv(mul(MINUS_ONE, a), Const(-value))
        if type(a) is Const:
            return Const(a.value // value)
        return _quotient_by_int(a, value)
    return _symbolic_quotient(a, b)


@lru_cache(CACHE_SIZE)
def mod(a: Expr, b: Expr) -> Expr:
    """Return `a % b`, with the sign of `b`.

    Raises:
        ExprError: GY-EXPR-002, when `b` is the constant zero.
    """
    if type(b) is Const:
        value = b.value
        if value <= 1:
            if value == 0:
                raise _zero_divisor()
            if value == 1:
                return ZERO
            return mul(MINUS_ONE, mod(mul(MINUS_ONE, a), Const(-value)))
        if type(a) is Const:
            return Const(a.value % value)
        return _remainder_by_int(a, value)
    return _symbolic_remainder(a, b)


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    """Return `a / b` rounded towards plus infinity."""
    a, b = expr(a), expr(b)
    return mul(MINUS_ONE, floordiv(mul(MINUS_ONE, a), b))


class _Reduced(NamedTuple):
    """The reduced form of a division: `a // c == quotient + sign*(rest // divisor)` and
    `a % c == scale*(rest % divisor) + low`, where `sign` is the sign of `scale`."""

    quotient: Expr
    rest: Expr
    divisor: int
    scale: int
    low: int


@lru_cache(CACHE_SIZE)
def _reduce(a: Expr, c: int) -> _Reduced:
    """Reduce a division of a non-constant `a` by c > 1; the rest is zero if `c` divides a - low."""
    terms, const = terms_of(a)
    quotient: Terms = {}
    rest: list[tuple[Expr, int]] = []
    g = c
    for monomial, k in terms:
        if k % c:
            rest.append((monomial, k))
            g = gcd(g, k)
        else:
            quotient[monomial] = k // c
    shift, const = divmod(const, c)
    multiple = sum_of_terms(quotient, shift) if quotient else Const(shift)
    if not rest:
        return _Reduced(multiple, ZERO, c, 1, const)
    inner, low = divmod(const, g)
    c //= g
    if rest[0][1] > 0:
        return _Reduced(multiple, raw_add(tuple([(m, k // g) for m, k in rest]), inner), c, g, low)
    flipped = raw_add(tuple([(m, -k // g) for m, k in rest]), c - 1 - inner)
    return _Reduced(multiple, flipped, c, -g, g * (c - 1) + low)


def _quotient_by_int(a: Expr, c: int) -> Expr:
    """Return `a // c` for a non-constant `a` and c > 1."""
    if type(a) is Sym:
        return raw_pair(FloorDiv, a, Const(c))  # type: ignore[no-any-return]
    quotient, rest, divisor, scale, _ = _reduce(a, c)
    if rest is ZERO:
        return quotient
    core = _core_quotient(rest, divisor)
    return add(quotient, core if scale > 0 else mul(MINUS_ONE, core))


def _remainder_by_int(a: Expr, c: int) -> Expr:
    """Return `a % c` for a non-constant `a` and c > 1."""
    if type(a) is Sym:
        return raw_pair(Mod, a, Const(c))  # type: ignore[no-any-return]
    _, rest, divisor, scale, low = _reduce(a, c)
    if rest is ZERO:
        return Const(low)
    core = _core_remainder(rest, divisor)
    if scale != 1:
        core = mul(Const(scale), core)
    return add(core, Const(low)) if low else core


def _core_quotient(a: Expr, c: int) -> Expr:
    """Return `a // c` for a reduced `a`."""
    terms, const = terms_of(a)
    value = _constant_quotient(terms, const, c)
    if value is not None:
        return Const(value)
    for term, k in terms:
        if k == 1 and type(term) is FloorDiv and (type(term.b) is Const or len(terms) == 1):
            # (x // d + y) // c == (x + d*y) // (d*c) for an integer c > 0
            others = sum_of_terms({m: n for m, n in terms if m is not term}, const)
            return floordiv(add(term.a, mul(term.b, others)), mul(term.b, Const(c)))
    if type(a) is Mod and type(a.b) is Const and a.b.value % c == 0:
        # By the identity (x % (c*n)) // c == (x // c) % n.
        return mod(floordiv(a.a, Const(c)), Const(a.b.value // c))
    return raw_pair(FloorDiv, a, Const(c))  # type: ignore[no-any-return]


def _core_remainder(a: Expr, c: int) -> Expr:
    """Return `a % c` for a reduced `a`."""
    terms, const = terms_of(a)
    value = _constant_quotient(terms, const, c)
    if value is not None:
        return add(a, Const(-value * c))
    for term, k in terms:
        if type(term) is Mod and _dissolves(term, k, Const(c)):
            return mod(add(a, mul(Const(k), add(term.a, mul(MINUS_ONE, term)))), Const(c))
    return raw_pair(Mod, a, Const(c))  # type: ignore[no-any-return]


def _dissolves(term: Mod, k: int, b: Expr) -> bool:
    """Return whether the remainder `term`, with coefficient `k` in a sum, can be replaced by its
    numerator in a remainder of the sum by `b`.

    Coefficients are limited, since they could grow with every nested remainder.
    """
    if exact_quotient(term.b, b) is None:
        return False
    return k in (1, -1) or all(abs(n * k) < _LARGE for _, n in terms_of(term.a)[0])


def _constant_quotient(terms: tuple[tuple[Expr, int], ...], const: int, c: int) -> int | None:
    """Return the quotient by `c` of a sum of remainders if it is the same for all their values."""
    low, high = _remainder_bounds(terms, const)
    if low is None or high is None or low // c != high // c:
        return None
    return low // c


def _remainder_bounds(
    terms: tuple[tuple[Expr, int], ...], const: int
) -> tuple[int | None, int | None]:
    """Return the bounds of a sum of remainders by positive integers, which need no facts."""
    low = high = const
    for term, k in terms:
        if type(term) is not Mod or type(term.b) is not Const:
            return None, None
        top = (term.b.value - 1) * k
        if k > 0:
            high += top
        else:
            low += top
    return low, high


def _leading(value: Expr) -> int:
    terms, const = terms_of(value)
    return terms[0][1] if terms else const


def _symbolic_quotient(a: Expr, b: Expr) -> Expr:
    """Return `a // b` for a non-constant `b`."""
    if a is b:
        return ONE
    if a is ZERO:
        return ZERO
    if _leading(b) < 0:
        return _symbolic_quotient(mul(MINUS_ONE, a), mul(MINUS_ONE, b))
    quotient, rest, divisor, common = _reduce_symbolic(a, b)
    if rest is ZERO:
        return quotient
    if common is ONE:
        return add(quotient, raw_pair(FloorDiv, rest, divisor))
    return add(quotient, floordiv(rest, divisor))


def _symbolic_remainder(a: Expr, b: Expr) -> Expr:
    """Return `a % b` for a non-constant `b`."""
    if a is b or a is ZERO:
        return ZERO
    if _leading(b) < 0:
        return mul(MINUS_ONE, _symbolic_remainder(mul(MINUS_ONE, a), mul(MINUS_ONE, b)))
    _, rest, divisor, common = _reduce_symbolic(a, b)
    if rest is ZERO:
        return ZERO
    if common is not ONE:
        return mul(common, mod(rest, divisor))
    for term, k in terms_of(rest)[0]:
        if type(term) is Mod and _dissolves(term, k, b):
            return mod(add(rest, mul(Const(k), add(term.a, mul(MINUS_ONE, term)))), b)
    return raw_pair(Mod, rest, divisor)  # type: ignore[no-any-return]


def _reduce_symbolic(a: Expr, b: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """Return (q, r, d, g) with `a == b*q + g*r` and `b == g*d`."""
    quotient, rest = extract_multiples(a, b)
    if rest is ZERO:
        return quotient, ZERO, b, ONE
    common = common_factor(rest, b)
    if common is ONE:
        return quotient, rest, b, ONE
    top, bottom = exact_quotient(rest, common), exact_quotient(b, common)
    assert top is not None
    assert bottom is not None
    return quotient, top, bottom, common


def common_factor(a: Expr, b: Expr) -> Expr:
    """Return the greatest `c * monomial`, c > 0, that divides every term of `a` and of `b`."""
    (terms_a, const_a), (terms_b, const_b) = terms_of(a), terms_of(b)
    g = gcd(const_a, const_b, *(k for _, k in terms_a), *(k for _, k in terms_b))
    if const_a or const_b:
        return Const(g)
    monomials = [m for m, _ in terms_a] + [m for m, _ in terms_b]
    powers = dict(factors_of(monomials[0]))
    for monomial in monomials[1:]:
        other = dict(factors_of(monomial))
        powers = {atom: min(p, other[atom]) for atom, p in powers.items() if atom in other}
        if not powers:
            return Const(g)
    return mul(Const(g), raw_mul(tuple(powers.items())))


def exact_quotient(a: Expr, b: Expr) -> Expr | None:
    """Return the polynomial `q` with `a == b*q`, or None if there is none or it is not unique."""
    if a is b:
        return ONE
    if type(b) is Const:
        value = b.value
        if value == 0:
            return None
        terms, const = terms_of(a)
        if const % value or any(k % value for _, k in terms):
            return None
        return raw_add(tuple((m, k // value) for m, k in terms), const // value)
    quotient, rest = extract_multiples(a, b)
    return quotient if rest is ZERO else None


def extract_multiples(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return (q, r) with `a == b*q + r`, where `b*q` is the part of `a` that is syntactically a
    multiple of `b`.

    For a `b` of one term, these are all terms of `a` divisible by it. For a longer one, `q` is the
    exact polynomial quotient if there is one, else it covers the multiples of `b` whose terms all
    occur in `a`.
    """
    terms_b, const_b = terms_of(b)
    if not terms_b:
        shift = {m: k // const_b for m, k in terms_of(a)[0] if k % const_b == 0}
        quotient = sum_of_terms(shift, terms_of(a)[1] // const_b)
        return quotient, add(a, mul(Const(-const_b), quotient))
    if len(terms_b) == 1 and const_b == 0:
        return _extract_by_term(a, *terms_b[0])
    if type(a) is not Add or not (a.free_symbols & b.free_symbols):
        return ZERO, a
    exact = _long_division(a, b, cautious=False)
    if exact is not None and exact[1] is ZERO:
        return exact
    partial = _long_division(a, b, cautious=True)
    return (ZERO, a) if partial is None else partial


def _extract_by_term(a: Expr, monomial: Expr, k: int) -> tuple[Expr, Expr]:
    terms, const = terms_of(a)
    quotient: Terms = {}
    quotient_const = 0
    rest: list[tuple[Expr, int]] = []
    for term, c in terms:
        ratio = None if c % k else divide_monomials(term, monomial)
        if ratio is None:
            rest.append((term, c))
        elif ratio is ONE:
            quotient_const = c // k
        else:
            quotient[ratio] = c // k
    if len(rest) == len(terms):
        return ZERO, a
    return sum_of_terms(quotient, quotient_const), raw_add(tuple(rest), const)


def _long_division(a: Expr, b: Expr, cautious: bool) -> tuple[Expr, Expr] | None:
    """Divide by the leading term of `b`; if `cautious`, only where the sum gets shorter."""
    lead, k = terms_of(b)[0][0]
    quotient: Expr = ZERO
    rest = a
    for _ in range(2 * len(terms_of(a)[0]) + 8):
        for term, c in terms_of(rest)[0]:
            ratio = None if c % k else divide_monomials(term, lead)
            if ratio is None:
                continue
            part = mul(Const(c // k), ratio)
            left = add(rest, mul(MINUS_ONE, mul(part, b)))
            if cautious and not _contains(rest, mul(part, b)):
                continue
            quotient, rest = add(quotient, part), left
            break
        else:
            return quotient, rest
    return None


def _contains(value: Expr, part: Expr) -> bool:
    """Return whether `value` has each term of `part`, with the same sign and no smaller absolute
    coefficient."""
    (terms_p, const_p), (terms_v, const_v) = terms_of(part), terms_of(value)
    have = dict(terms_v)
    pairs = [(c, have.get(m, 0)) for m, c in terms_p]
    if const_p:
        pairs.append((const_p, const_v))
    return all(h and (h > 0) == (c > 0) and abs(h) >= abs(c) for c, h in pairs)
