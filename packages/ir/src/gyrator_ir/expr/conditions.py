"""Conditions in normal form.

A relation is first brought to the form `D <= k`, `D == k` or `D != k`, where `D` is a sum without
a constant and without a common factor. Positive terms are then moved to the left side and negative
ones to the right:

* `D <= 0` is `Le(p, n)`, `D <= -1` is `Lt(p, n)`, `D <= k` is `Lt(p, n + k + 1)` for k > 0 and
  `Le(p - k, n)` for k < -1: so `x < 5`, `5 <= x`, `0 <= x`, `i0 < s0`;
* in `D == k` the first coefficient is positive, and the constant is on the side where it is
  positive.

There is no node for "not": it is pushed through "and" and "or" down to relations, each of which has
a negation.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import gcd
from operator import attrgetter

from gyrator_ir.expr.build import CACHE_SIZE, Terms, accumulate, sum_of_terms, terms_of
from gyrator_ir.expr.nodes import (
    FALSE,
    TRUE,
    And,
    Bool,
    Cond,
    Eq,
    Expr,
    Le,
    Lt,
    Ne,
    Or,
    expr,
    raw_add,
    raw_args,
    raw_pair,
)


@lru_cache(CACHE_SIZE)
def relation(op: str, a: Expr, b: Expr) -> Cond:
    """Return `a op b` for an `op` of `==`, `!=`, `<`, `<=`, `>`, `>=`."""
    if op == "!=":
        return negate(relation("==", a, b))
    if op in (">", ">="):
        a, b = b, a
    difference: Terms = {}
    const = accumulate(difference, a, 1) + accumulate(difference, b, -1)
    terms, shift = terms_of(sum_of_terms(difference, const))
    bound = -shift
    if op == "==":
        return _equality(terms, bound)
    if op in ("<", ">"):
        bound -= 1
    return _at_most(terms, bound)


def _sides(terms: tuple[tuple[Expr, int], ...]) -> tuple[Expr, Expr, int, int]:
    positive = tuple((m, c) for m, c in terms if c > 0)
    negative = tuple((m, -c) for m, c in terms if c < 0)
    return raw_add(positive, 0), raw_add(negative, 0), len(positive), len(negative)


def _plus(value: Expr, const: int) -> Expr:
    terms, have = terms_of(value)
    return raw_add(terms, have + const)


def _at_most(terms: tuple[tuple[Expr, int], ...], bound: int) -> Cond:
    if not terms:
        return TRUE if bound >= 0 else FALSE
    g = gcd(*(c for _, c in terms))
    if g > 1:
        terms = tuple((m, c // g) for m, c in terms)
        bound //= g
    left, right, _, _ = _sides(terms)
    if bound == 0:
        return raw_pair(Le, left, right)  # type: ignore[no-any-return]
    if bound == -1:
        return raw_pair(Lt, left, right)  # type: ignore[no-any-return]
    if bound > 0:
        return raw_pair(Lt, left, _plus(right, bound + 1))  # type: ignore[no-any-return]
    return raw_pair(Le, _plus(left, -bound), right)  # type: ignore[no-any-return]


def _equality(terms: tuple[tuple[Expr, int], ...], value: int) -> Cond:
    if not terms:
        return TRUE if value == 0 else FALSE
    g = gcd(*(c for _, c in terms))
    if value % g:
        return FALSE
    if terms[0][1] < 0:
        g = -g
    if g != 1:
        terms = tuple((m, c // g) for m, c in terms)
        value //= g
    left, right, _, _ = _sides(terms)
    if value > 0:
        right = _plus(right, value)
    elif value < 0:
        left = _plus(left, -value)
    return raw_pair(Eq, left, right)  # type: ignore[no-any-return]


def eq(a: Expr | int, b: Expr | int) -> Cond:
    """Return `a == b`."""
    return relation("==", expr(a), expr(b))


def ne(a: Expr | int, b: Expr | int) -> Cond:
    """Return `a != b`."""
    return relation("!=", expr(a), expr(b))


def lt(a: Expr | int, b: Expr | int) -> Cond:
    """Return `a < b`."""
    return relation("<", expr(a), expr(b))


def le(a: Expr | int, b: Expr | int) -> Cond:
    """Return `a <= b`."""
    return relation("<=", expr(a), expr(b))


def gt(a: Expr | int, b: Expr | int) -> Cond:
    """Return `a > b`."""
    return relation("<", expr(b), expr(a))


def ge(a: Expr | int, b: Expr | int) -> Cond:
    """Return `a >= b`."""
    return relation("<=", expr(b), expr(a))


def negate(cond: Cond) -> Cond:
    """Return the negation of `cond`."""
    if isinstance(cond, Bool):
        return FALSE if cond is TRUE else TRUE
    if isinstance(cond, Eq):
        return raw_pair(Ne, cond.a, cond.b)  # type: ignore[no-any-return]
    if isinstance(cond, Ne):
        return raw_pair(Eq, cond.a, cond.b)  # type: ignore[no-any-return]
    if isinstance(cond, Lt):
        return relation("<=", cond.b, cond.a)
    if isinstance(cond, Le):
        return relation("<", cond.b, cond.a)
    if isinstance(cond, And):
        return any_of(negate(arg) for arg in cond.args)
    assert isinstance(cond, Or)
    return all_of(negate(arg) for arg in cond.args)


def _join(cls: type[And] | type[Or], conds: Iterable[Cond]) -> Cond:
    neutral, absorbing = (TRUE, FALSE) if cls is And else (FALSE, TRUE)
    args: dict[Cond, None] = {}
    stack = list(conds)
    while stack:
        cond = stack.pop()
        if cond is absorbing:
            return absorbing
        if isinstance(cond, cls):
            stack.extend(cond.args)
        elif cond is not neutral:
            args[cond] = None
    if not args:
        return neutral
    if len(args) == 1:
        return next(iter(args))
    if any(not isinstance(cond, And | Or) and negate(cond) in args for cond in args):
        return absorbing
    return raw_args(cls, tuple(sorted(args, key=attrgetter("sort_key"))))  # type: ignore[no-any-return]


def all_of(conds: Iterable[Cond]) -> Cond:
    """Return the conjunction of any number of conditions; TRUE if there are none."""
    return _join(And, conds)


def any_of(conds: Iterable[Cond]) -> Cond:
    """Return the disjunction of any number of conditions; FALSE if there are none."""
    return _join(Or, conds)


def both(a: Cond, b: Cond) -> Cond:
    """Return `a and b`."""
    return _join(And, (a, b))


def either(a: Cond, b: Cond) -> Cond:
    """Return `a or b`."""
    return _join(Or, (a, b))
