"""Simplification under facts: bottom-up to a fixed point, with one memo per set of facts."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import TypeVar, cast

from gyrator_ir.expr.build import (
    accumulate,
    factors_of,
    maximum,
    minimum,
    mul,
    sum_of,
    sum_of_terms,
    terms_of,
)
from gyrator_ir.expr.conditions import negate
from gyrator_ir.expr.division import common_factor, exact_quotient, extract_multiples, floordiv, mod
from gyrator_ir.expr.nodes import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Add,
    Bool,
    Cond,
    Const,
    Eq,
    Expr,
    ExprError,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Node,
    Sym,
    raw_mul,
)
from gyrator_ir.expr.prover import Interval, Prover
from gyrator_ir.expr.recombine import recombine
from gyrator_ir.expr.walk import iter_nodes, rebuild

AnyNode = TypeVar("AnyNode", Expr, Cond)

_ROUNDS = 12  # in practice, three are enough


class Simplifier:
    """Rewrites expressions with the help of a `Prover`, and caches every result."""

    def __init__(self, prover: Prover) -> None:
        self._prover = prover
        self._memo: dict[Node, Node] = {}

    def __call__(self, node: AnyNode) -> AnyNode:
        """Return a simpler node that is equal for all values that the facts admit."""
        if node not in self._memo:
            for below in iter_nodes(node):  # inner nodes first, so that recursion stays shallow
                self._simplify(below)
        return cast(AnyNode, self._simplify(node))

    def _simplify(self, node: Node) -> Node:
        result = self._memo.get(node)
        if result is None:
            result = node
            if isinstance(node, Add) and self._is_irreducible(node):
                self._memo[node] = node
                return node
            for _ in range(_ROUNDS):
                try:
                    step = self._step(rebuild(result, self._simplify))
                except ExprError:
                    break  # a divisor is zero; keep the node, which a `where` may guard
                if step is result:
                    break
                result = step
            self._memo[node] = self._memo[result] = result
        return result

    def _is_irreducible(self, node: Add) -> bool:
        """Return whether facts cannot simplify a sum: all its atoms are symbols, none constant."""
        simple = all(
            type(term) is Sym
            or (type(term) is Mul and all(type(atom) is Sym for atom, _ in term.factors))
            for term, _ in node.terms
        )
        if not simple or any(_is_constant(self._prover.bounds(sym)) for sym in node.free_symbols):
            return False
        return not _is_constant(self._prover.bounds(node))

    def _step(self, node: Node) -> Node:
        if isinstance(node, Cond):
            return self._condition(node)
        assert isinstance(node, Expr)
        if isinstance(node, Const):
            return node
        low, high = self._prover.bounds(node)
        if low is not None and low == high:
            return Const(low)
        if isinstance(node, FloorDiv):
            return self._floordiv(node)
        if isinstance(node, Mod):
            return self._mod(node)
        if isinstance(node, Min | Max):
            return self._extremum(node)
        if isinstance(node, Add):
            return self._sum(node)
        return node

    def _condition(self, node: Cond) -> Cond:
        if isinstance(node, Bool):
            return node
        if self._prover.known(node):
            return TRUE
        if isinstance(node, Eq | Ne | Lt | Le) and self._prover.known(negate(node)):
            return FALSE
        return node

    def _in_range(self, value: Expr, divisor: Expr) -> bool:
        """Prove `0 <= value < divisor`."""
        low, high = self._prover.bounds(value)
        if high is not None and high < 0:
            return False
        if (low is None or low < 0) and not self._prover.nonnegative(value):
            return False
        least, most = self._prover.bounds(divisor)
        if high is not None and least is not None and high < least:
            return True
        if low is not None and most is not None and low >= most:
            return False
        return self._prover.nonnegative(divisor - value - 1)

    def _split(self, a: Expr, b: Expr) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """Yield (g, p, c, r) with `a == g*p + r`, `b == g*c`, 0 <= r < g and c > 0 proved."""
        for g in _common_divisors(a, b):
            c = exact_quotient(b, g)
            if c is None:
                continue
            p, r = _multiples(a, g)
            if p is ZERO or r is ZERO:
                continue
            if self._in_range(r, g) and self._prover.positive(c):
                yield g, p, c, r

    def _multiples_by_facts(self, a: Expr, b: Expr) -> tuple[list[Expr], Expr]:
        """Return the terms of `a` that are multiples of an integer `b` by facts, and the rest."""
        if not isinstance(b, Const):
            return [], a
        terms, _ = terms_of(a)
        multiples = [
            sum_of_terms({term: c}, 0)
            for term, c in terms
            if c * self._prover.divisor_of(term) % b.value == 0
        ]
        if not multiples:
            return [], a
        return multiples, a - sum_of(multiples)

    def _floordiv(self, node: FloorDiv) -> Expr:
        a, b = node.a, node.b
        if self._in_range(a, b):
            return ZERO
        multiples, rest = self._multiples_by_facts(a, b)
        if multiples and (len(multiples) > 1 or rest is not ZERO):
            return sum_of([*(floordiv(term, b) for term in multiples), floordiv(rest, b)])
        for _, p, c, _ in self._split(a, b):
            return floordiv(p, c)
        if isinstance(a, FloorDiv) and self._prover.positive(b):
            return floordiv(a.a, mul(a.b, b))
        if isinstance(a, Mod):
            n = exact_quotient(a.b, b)
            if n is not None and self._prover.positive(b) and self._prover.positive(n):
                return mod(floordiv(a.a, b), n)
        return node

    def _mod(self, node: Mod) -> Expr:
        a, b = node.a, node.b
        if self._in_range(a, b):
            return a
        multiples, rest = self._multiples_by_facts(a, b)
        if multiples:
            return mod(rest, b)
        for g, p, c, r in self._split(a, b):
            return mul(g, mod(p, c)) + r
        if isinstance(b, Const):
            low, high = self._prover.bounds(a)
            if low is not None and high is not None and low // b.value == high // b.value:
                return a - low // b.value * b.value
        return node

    def _extremum(self, node: Min | Max) -> Expr:
        args = list(node.args)
        for arg in node.args:
            for other in args:
                if other is arg:
                    continue
                least, most = (other, arg) if isinstance(node, Min) else (arg, other)
                if self._prover.nonnegative(most - least):
                    args.remove(arg)
                    break
        if len(args) == len(node.args):
            return node
        return _EXTREMA[type(node)](*args)

    def _sum(self, node: Add) -> Expr:
        changed = recombine(dict(node.terms), node.const, self._prover.positive)
        if changed is not None:
            return sum_of_terms(*changed)
        terms: dict[Expr, int] = {}
        const = node.const
        exact = False
        for term, c in node.terms:
            multiple = self._exact_division(term, c)
            if multiple is None:
                terms[term] = terms.get(term, 0) + c
            else:
                exact = True
                const += accumulate(terms, multiple, 1)
        return sum_of_terms(terms, const) if exact else node

    def _exact_division(self, term: Expr, c: int) -> Expr | None:
        """Return `(c / n) * R * m` for a term `c * R * (m // n)` where n divides both c and m."""
        for atom, power in factors_of(term):
            if power == 1 and isinstance(atom, FloorDiv) and isinstance(atom.b, Const):
                n = atom.b.value
                if c % n == 0 and self._prover.divisor_of(atom.a) % n == 0:
                    rest = tuple(f for f in factors_of(term) if f[0] is not atom)
                    other = raw_mul(rest) if rest else ONE
                    return mul(mul(Const(c // n), other), atom.a)
        return None


_EXTREMA = {Min: minimum, Max: maximum}


def _is_constant(bounds: Interval) -> bool:
    low, high = bounds
    return low is not None and low == high


def _multiples(a: Expr, g: Expr) -> tuple[Expr, Expr]:
    """Return (p, r) with `a == g*p + r`, where the constant of `r` is in [0, g) if `g` is one."""
    p, r = extract_multiples(a, g)
    if isinstance(g, Const):
        multiple = terms_of(r)[1] // g.value
        p, r = p + multiple, r - multiple * g.value
    return p, r


def _common_divisors(a: Expr, b: Expr) -> list[Expr]:
    """Return the divisors of `b` that terms of `a` may share, largest first."""
    terms_b, const_b = terms_of(b)
    if not terms_b:
        sizes = {gcd(c, const_b) for _, c in terms_of(a)[0]}
        return [Const(g) for g in sorted(sizes, reverse=True) if 1 < g < const_b]
    if len(terms_b) > 1 or const_b:
        content = common_factor(b, b)
        if content is ONE:
            return []
        primitive = exact_quotient(b, content)
        return [content] if primitive is None else [primitive, content]
    factors: dict[Expr, None] = {}
    for term, c in terms_of(a)[0]:
        g = common_factor(sum_of_terms({term: c}, 0), b)
        if g is not ONE and g is not b:
            factors[g] = None
    return sorted(factors, key=lambda g: g.sort_key)
