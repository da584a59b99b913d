"""Constructors of sums, products, minima, maxima and selections in normal form.

Sums and products are polynomials in normal form: products are expanded over sums, equal monomials
are collected, terms are sorted. Sums also recombine quotients and remainders (`recombine`). The
binary constructors cache their results, which has no observable effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter

from gyrator_ir.expr.nodes import (
    ONE,
    TRUE,
    ZERO,
    Add,
    Bool,
    Cond,
    Const,
    Eq,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    expr,
    raw_add,
    raw_args,
    raw_mul,
    raw_pair,
    raw_where,
)
from gyrator_ir.expr.recombine import recombine

CACHE_SIZE = 1 << 15  # entries per constructor; a few megabytes at most

Terms = dict[Expr, int]


def term_key(term: tuple[Expr, int]) -> tuple[object, ...]:
    """Return what the terms of a sum are sorted by."""
    return term[0].sort_key


def _divides(monomial: Expr) -> bool:
    cls = type(monomial)
    return cls is FloorDiv or cls is Mod or (cls is Mul and monomial.divides)  # type: ignore[attr-defined]


def accumulate(terms: Terms, value: Expr, scale: int) -> int:
    """Add `scale * value` into `terms` in place (zeros may remain); return its constant part."""
    cls = type(value)
    if cls is Add:
        for monomial, c in value.terms:  # type: ignore[attr-defined]
            terms[monomial] = terms.get(monomial, 0) + c * scale
        return value.const * scale  # type: ignore[attr-defined, no-any-return]
    if cls is Const:
        return value.value * scale  # type: ignore[attr-defined, no-any-return]
    terms[value] = terms.get(value, 0) + scale
    return 0


def sum_of_terms(terms: Terms, const: int) -> Expr:
    """Return the normal form of `sum(c * monomial) + const`; `terms` may hold zeros."""
    items = [item for item in terms.items() if item[1]]
    if not items:
        return Const(const)
    if len(items) > 1:
        for monomial, _ in items:
            if _divides(monomial):
                changed = recombine(dict(items), const)
                if changed is not None:
                    return sum_of_terms(*changed)
                break
        items.sort(key=term_key)
    return raw_add(tuple(items), const)


def terms_of(value: Expr) -> tuple[tuple[tuple[Expr, int], ...], int]:
    """Return `value` as ((monomial, coefficient), ...) and its constant part."""
    cls = type(value)
    if cls is Add:
        return value.terms, value.const  # type: ignore[attr-defined]
    if cls is Const:
        return (), value.value  # type: ignore[attr-defined]
    return ((value, 1),), 0


def factors_of(monomial: Expr) -> tuple[tuple[Expr, int], ...]:
    """Return `monomial` (a `Mul` or an atom) as ((atom, power), ...)."""
    if type(monomial) is Mul:
        return monomial.factors
    return ((monomial, 1),)


@lru_cache(CACHE_SIZE)
def add(a: Expr, b: Expr) -> Expr:
    """Return `a + b`."""
    if type(b) is Const:
        a, b = b, a
    if type(a) is Const:
        value = a.value
        if type(b) is Const:
            return Const(value + b.value)
        if value == 0:
            return b
        if type(b) is not Add and not _divides(b):
            return raw_add(((b, 1),), value)
    terms: Terms = {}
    const = accumulate(terms, a, 1) + accumulate(terms, b, 1)
    return sum_of_terms(terms, const)


def sum_of(values: Iterable[Expr | int]) -> Expr:
    """Return the sum of any number of expressions, in one pass, cheaper than repeated `+`."""
    terms: Terms = {}
    const = 0
    for value in values:
        const += value if isinstance(value, int) else accumulate(terms, value, 1)
    return sum_of_terms(terms, const)


@lru_cache(CACHE_SIZE)
def mul_monomials(a: Expr, b: Expr) -> Expr:
    """Return the monomial `a * b`."""
    powers: Terms = dict(factors_of(a))
    for atom, power in factors_of(b):
        powers[atom] = powers.get(atom, 0) + power
    return raw_mul(tuple(sorted(powers.items(), key=term_key)))


@lru_cache(CACHE_SIZE)
def mul(a: Expr, b: Expr) -> Expr:
    """Return `a * b`, expanded."""
    if type(b) is Const:
        a, b = b, a
    if type(a) is Const:
        value = a.value
        if value == 0:
            return ZERO
        if value == 1:
            return b
        terms_b, const = terms_of(b)
        if len(terms_b) > 1 and any(_divides(m) for m, _ in terms_b):
            return sum_of_terms({m: c * value for m, c in terms_b}, const * value)
        return raw_add(tuple((m, c * value) for m, c in terms_b), const * value)
    if type(a) is not Add and type(b) is not Add:
        return mul_monomials(a, b)
    return sum_of_terms(*_expand(a, b))


def _expand(a: Expr, b: Expr) -> tuple[Terms, int]:
    terms_a, const_a = terms_of(a)
    terms_b, const_b = terms_of(b)
    terms: Terms = {}
    for m, c in terms_a:
        for n, d in terms_b:
            product = mul_monomials(m, n)
            terms[product] = terms.get(product, 0) + c * d
        if const_b:
            terms[m] = terms.get(m, 0) + c * const_b
    if const_a:
        for n, d in terms_b:
            terms[n] = terms.get(n, 0) + const_a * d
    return terms, const_a * const_b


def product_of(values: Iterable[Expr | int]) -> Expr:
    """Return the product of any number of expressions; one if there are none."""
    result: Expr = ONE
    for value in values:
        result = mul(result, expr(value))
    return result


def _extremum(cls: type[Min] | type[Max], values: Iterable[Expr | int]) -> Expr:
    """Flatten nested extrema, and merge arguments that differ by an integer constant."""
    pick = min if cls is Min else max
    best: dict[tuple[tuple[Expr, int], ...], int] = {}
    stack = [expr(value) for value in values]
    if not stack:
        raise TypeError(f"{cls.__name__} needs at least one argument")
    while stack:
        value = stack.pop()
        if isinstance(value, cls):
            stack.extend(value.args)
            continue
        terms, const = terms_of(value)
        best[terms] = pick(best[terms], const) if terms in best else const
    args = sorted(
        (raw_add(terms, const) for terms, const in best.items()), key=attrgetter("sort_key")
    )
    return args[0] if len(args) == 1 else raw_args(cls, tuple(args))


def minimum(*values: Expr | int) -> Expr:
    """Return the minimum of one or more expressions."""
    return _extremum(Min, values)


def maximum(*values: Expr | int) -> Expr:
    """Return the maximum of one or more expressions."""
    return _extremum(Max, values)


def absolute(value: Expr | int) -> Expr:
    """Return `max(value, -value)`."""
    value = expr(value)
    return maximum(value, -value)


def where(cond: Cond, a: Expr | int, b: Expr | int) -> Expr:
    """Return `a` if `cond` holds, else `b`."""
    a, b = expr(a), expr(b)
    if isinstance(cond, Bool):
        return a if cond is TRUE else b
    if a is b:
        return a
    if isinstance(cond, Ne):
        return raw_where(raw_pair(Eq, cond.a, cond.b), b, a)
    return raw_where(cond, a, b)
