"""Recombination of quotients and remainders of the same number inside a sum.

With `F = m // d` and `M = m % d`, so that `m = d*F + M`, and a common cofactor `k*R`:

* join:   k*R*M + k*d*R*F          ->  k*R*m
* round:  k*R*m - k*R*M            ->  k*d*R*F
* rest:   k*R*m - k*d*R*F          ->  k*R*M
* nest:   k*R*(x % d) + k*d*R*((x // d) % n)  ->  k*R*(x % (d*n))    for n > 0

A rule applies if the sum contains every term that it removes, with the same sign and at least the
same absolute coefficient. Each application removes a quotient or a remainder, so the process
terminates.
"""

from __future__ import annotations

from collections.abc import Callable

from gyrator_ir.expr.nodes import ONE, Add, Const, Expr, FloorDiv, Mod, Mul, raw_mul

Terms = dict[Expr, int]


def _is_positive_int(value: Expr) -> bool:
    return isinstance(value, Const) and value.value > 0


def recombine(
    terms: Terms, const: int, positive: Callable[[Expr], bool] = _is_positive_int
) -> tuple[Terms, int] | None:
    """Apply one rule to the sum, and return the new sum, or None if no rule applies.

    `positive` returns whether a divisor is certainly greater than zero.

    The monomials are tried in structural order, so that the result does not depend on the insertion
    order of `terms`.
    """
    candidates = sorted(
        (m for m in terms if type(m) in (FloorDiv, Mod) or (type(m) is Mul and m.divides)),
        key=lambda m: m.sort_key,
    )
    for monomial in candidates:
        k = terms[monomial]
        for atom, cofactor in _division_factors(monomial):
            if type(atom) is Mod:
                change = (
                    _join(terms, k, atom, cofactor)
                    or _round(terms, k, atom, cofactor)
                    or _nest(terms, k, atom, cofactor, positive)
                )
            else:
                change = _rest(terms, k, atom, cofactor)
            if change is not None:
                return _apply(terms, const, change)
    return None


# A change of a sum: (scale, expression) pairs to add to it.
Change = tuple[tuple[int, Expr], ...]


def _apply(terms: Terms, const: int, change: Change) -> tuple[Terms, int]:
    result = dict(terms)
    for scale, value in change:
        const += _accumulate(result, value, scale)
    return {m: c for m, c in result.items() if c}, const


def _accumulate(terms: Terms, value: Expr, scale: int) -> int:
    if isinstance(value, Const):
        return value.value * scale
    if isinstance(value, Add):
        for m, c in value.terms:
            terms[m] = terms.get(m, 0) + c * scale
        return value.const * scale
    terms[value] = terms.get(value, 0) + scale
    return 0


def _division_factors(monomial: Expr) -> list[tuple[FloorDiv | Mod, Expr]]:
    """Return each quotient or remainder of power one in `monomial`, with its cofactor."""
    if isinstance(monomial, FloorDiv | Mod):
        return [(monomial, ONE)]
    assert isinstance(monomial, Mul)
    factors = monomial.factors
    return [
        (atom, raw_mul(factors[:at] + factors[at + 1 :]))
        for at, (atom, power) in enumerate(factors)
        if power == 1 and isinstance(atom, FloorDiv | Mod)
    ]


def _contains(terms: Terms, value: Expr, scale: int) -> bool:
    """Return whether the sum contains all non-constant terms of `scale * value`."""
    if isinstance(value, Const):
        return False
    parts = value.terms if isinstance(value, Add) else ((value, 1),)
    for monomial, c in parts:
        have = terms.get(monomial, 0)
        need = c * scale
        if have == 0 or (have > 0) != (need > 0) or abs(have) < abs(need):
            return False
    return True


def _is_sum(value: Expr) -> bool:
    return isinstance(value, Add | Const)


def _join(terms: Terms, k: int, mod: Mod, cofactor: Expr) -> Change | None:
    quotient = mod.a // mod.b
    if _is_sum(quotient):
        return None
    partner = cofactor * mod.b * quotient
    if not _contains(terms, partner, k):
        return None
    return (-k, cofactor * mod), (-k, partner), (k, cofactor * mod.a)


def _round(terms: Terms, k: int, mod: Mod, cofactor: Expr) -> Change | None:
    number = cofactor * mod.a
    if not _contains(terms, number, -k):
        return None
    return (-k, cofactor * mod), (k, number), (-k, cofactor * mod.b * (mod.a // mod.b))


def _split_cofactor(k: int, cofactor: Expr, divisor: Expr) -> tuple[int, Expr] | None:
    """Return (k', R') with `k * cofactor == k' * R' * divisor`, or None if there are none."""
    if isinstance(divisor, Const):
        return None if k % divisor.value else (k // divisor.value, cofactor)
    scale = 1
    if isinstance(divisor, Add):
        if divisor.const or len(divisor.terms) > 1:
            return None
        ((divisor, scale),) = divisor.terms
    if k % scale:
        return None
    rest = divide_monomials(cofactor, divisor)
    return None if rest is None else (k // scale, rest)


def divide_monomials(a: Expr, b: Expr) -> Expr | None:
    """Return the monomial (or one) `a / b` if `b` divides `a` as a monomial, else None."""
    powers = dict(_factors(a))
    for atom, power in _factors(b):
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        powers[atom] = left
    rest = tuple((atom, power) for atom, power in powers.items() if power)
    return raw_mul(rest) if rest else ONE


def _factors(monomial: Expr) -> tuple[tuple[Expr, int], ...]:
    if isinstance(monomial, Const):
        return ()
    return monomial.factors if isinstance(monomial, Mul) else ((monomial, 1),)


def _rest(terms: Terms, c: int, quotient: FloorDiv, cofactor: Expr) -> Change | None:
    split = _split_cofactor(-c, cofactor, quotient.b)
    if split is None:
        return None
    k, rest = split
    number = rest * quotient.a
    if not _contains(terms, number, k):
        return None
    return (-c, cofactor * quotient), (-k, number), (k, rest * (quotient.a % quotient.b))


def _as_quotient(value: Expr) -> tuple[Expr, Expr] | None:
    """Return (x, d) with `value == x // d`; this includes sums `y + (x // d)` with an integer d."""
    if isinstance(value, FloorDiv):
        return value.a, value.b
    if isinstance(value, Add):
        for term, c in value.terms:
            if c == 1 and isinstance(term, FloorDiv) and isinstance(term.b, Const):
                return term.a + (value - term) * term.b, term.b
    return None


def _nest(
    terms: Terms, c: int, mod: Mod, cofactor: Expr, positive: Callable[[Expr], bool]
) -> Change | None:
    quotient = _as_quotient(mod.a)
    if quotient is None or not positive(mod.b):
        return None
    x, d = quotient
    split = _split_cofactor(c, cofactor, d)
    if split is None:
        return None
    k, rest = split
    remainder = x % d
    if _is_sum(remainder):
        return None
    partner = rest * remainder
    if not _contains(terms, partner, k):
        return None
    return (-c, cofactor * mod), (-k, partner), (k, rest * (x % (d * mod.b)))
