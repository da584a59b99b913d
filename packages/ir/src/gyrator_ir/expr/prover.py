"""Proofs about expressions from ranges, divisibility and assumed inequalities.

Intervals are tried first, since they are cheap and decide most queries. If an upper bound is
symbolic (`i1 <= s0 - 1`), `nonnegative` eliminates bounded atoms that occur linearly, one at a
time, by substituting the end of the range that minimises the expression (one direction of a
Fourier-Motzkin elimination step), until an interval decides or the fuel runs out. Answers are sound
but incomplete: False means "not proved".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import NamedTuple

from gyrator_ir.expr.build import accumulate, mul, sum_of_terms, term_key, terms_of
from gyrator_ir.expr.division import exact_quotient, floordiv
from gyrator_ir.expr.nodes import (
    MINUS_ONE,
    ONE,
    ZERO,
    Add,
    And,
    Bool,
    Cond,
    Const,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Or,
    Sym,
    SymKind,
    Where,
    raw_add,
)
from gyrator_ir.expr.recombine import divide_monomials


class Range(NamedTuple):
    """The inclusive bounds of a symbol; None for an unbounded side."""

    lo: int | None
    hi: Expr | None


Interval = tuple[int | None, int | None]

ANY: Interval = (None, None)
_FUEL = 24  # eliminations per query; a loop nest needs about two per dimension


def _times(a: Interval, b: Interval) -> Interval:
    """Multiply intervals, where None is minus or plus infinity."""
    if a == (0, 0) or b == (0, 0):
        return 0, 0
    (al, ah), (bl, bh) = a, b
    if al is not None and al >= 0 and bl is not None and bl >= 0:
        return al * bl, None if ah is None or bh is None else ah * bh
    if al is None or ah is None or bl is None or bh is None:
        return _times_open(a, b)
    corners = (al * bl, al * bh, ah * bl, ah * bh)
    return min(corners), max(corners)


def _times_open(a: Interval, b: Interval) -> Interval:
    inf = float("inf")
    corners: list[float | int] = []
    for x in (-inf if a[0] is None else a[0], inf if a[1] is None else a[1]):
        for y in (-inf if b[0] is None else b[0], inf if b[1] is None else b[1]):
            if x == 0 or y == 0:
                corners.append(0)  # an infinite end is never reached, so 0 * inf is 0
            elif isinstance(x, int) and isinstance(y, int):
                corners.append(x * y)
            else:
                corners.append(inf if (x > 0) == (y > 0) else -inf)
    low, high = min(corners), max(corners)
    return (low if isinstance(low, int) else None), (high if isinstance(high, int) else None)


def _power(a: Interval, n: int) -> Interval:
    result = a
    for _ in range(n - 1):
        result = _times(result, a)
    if n % 2 == 0:
        result = (max(result[0], 0) if result[0] is not None else 0), result[1]
    return result


def _quotient(a: Interval, b: Interval) -> Interval:
    """Return bounds of `a // b`, for a divisor that is certainly positive."""
    (al, ah), (bl, bh) = a, b
    if bl is None or bl <= 0:
        return ANY
    lo = None if al is None else al // bl if al < 0 else (0 if bh is None else al // bh)
    hi = None if ah is None else ah // bl if ah >= 0 else (-1 if bh is None else ah // bh)
    return lo, hi


class Prover:
    """Answers queries under fixed facts, and caches the answers.

    Args:
        ranges: the ranges of symbols; others are unbounded, except that loop variables are >= 0.
        divisors: positive integers that divide symbols.
        assumed: conditions that hold.
    """

    def __init__(
        self, ranges: Mapping[Sym, Range], divisors: Mapping[Sym, int], assumed: tuple[Cond, ...]
    ) -> None:
        self._ranges = ranges
        self._divisors = divisors
        self._assumed = frozenset(assumed)
        self._slacks = tuple(
            cond.b - cond.a - (1 if isinstance(cond, Lt) else 0)
            for cond in assumed
            if isinstance(cond, Lt | Le)
        )
        self._bounds: dict[Expr, Interval] = {}
        self._nonnegative: dict[Expr, bool] = {}
        self._known: dict[Cond, bool] = {}

    def range_of(self, sym: Sym) -> Range:
        """Return the range of a symbol; loop variables are never negative."""
        declared = self._ranges.get(sym)
        if declared is not None:
            return declared
        return Range(0 if sym.kind in (SymKind.ITER, SymKind.REDUCE) else None, None)

    def bounds(self, value: Expr) -> Interval:
        """Return inclusive integer bounds of `value`; None for an unbounded side."""
        interval = self._bounds.get(value)
        if interval is None:
            interval = self._bounds[value] = self._interval(value)
        return interval

    def _interval(self, value: Expr) -> Interval:
        if isinstance(value, Const):
            return value.value, value.value
        if isinstance(value, Sym):
            lo, hi = self.range_of(value)
            return lo, None if hi is None else self.bounds(hi)[1]
        if isinstance(value, Add):
            low: int | None = value.const
            high: int | None = value.const
            for term, c in value.terms:
                lo_t, hi_t = self.bounds(term)
                if c < 0:
                    lo_t, hi_t = hi_t, lo_t
                low = None if low is None or lo_t is None else low + c * lo_t
                high = None if high is None or hi_t is None else high + c * hi_t
            return low, high
        if isinstance(value, Mul):
            result: Interval = (1, 1)
            for atom, power in value.factors:
                result = _times(result, _power(self.bounds(atom), power))
            return result
        if isinstance(value, FloorDiv):
            return _quotient(self.bounds(value.a), self.bounds(value.b))
        if isinstance(value, Mod):
            return self._remainder(value)
        if isinstance(value, Min | Max):
            return self._extremum(value)
        assert isinstance(value, Where)
        (al, ah), (bl, bh) = self.bounds(value.a), self.bounds(value.b)
        return (
            None if al is None or bl is None else min(al, bl),
            None if ah is None or bh is None else max(ah, bh),
        )

    def _remainder(self, value: Mod) -> Interval:
        lo, hi = self.bounds(value.b)
        if lo is None or lo <= 0:
            return ANY
        top = None if hi is None else hi - 1
        al, ah = self.bounds(value.a)
        if al is not None and al >= 0 and ah is not None:
            top = ah if top is None else min(top, ah)
            if ah < lo:
                return al, top
        return 0, top

    def _extremum(self, value: Min | Max) -> Interval:
        lows, highs = zip(*(self.bounds(arg) for arg in value.args), strict=True)
        known_low = [x for x in lows if x is not None]
        known_high = [x for x in highs if x is not None]
        if isinstance(value, Min):
            low = min(known_low) if len(known_low) == len(lows) else None
            return low, min(known_high, default=None)
        high = max(known_high) if len(known_high) == len(highs) else None
        return max(known_low, default=None), high

    def divisor_of(self, value: Expr) -> int:
        """Return a nonnegative integer that divides `value`: 0 for zero itself, else at least 1."""
        if isinstance(value, Sym):
            return self._divisors.get(value, 1)
        if isinstance(value, Const):
            return abs(value.value)
        if isinstance(value, Add):
            return gcd(value.const, *(c * self.divisor_of(term) for term, c in value.terms))
        if isinstance(value, Mul):
            product = 1
            for atom, power in value.factors:
                product *= self.divisor_of(atom) ** power
            return product
        if isinstance(value, FloorDiv) and isinstance(value.b, Const):
            quotient, remainder = divmod(self.divisor_of(value.a), value.b.value)
            return quotient if remainder == 0 and quotient else 1
        if isinstance(value, Mod):
            return gcd(self.divisor_of(value.a), self.divisor_of(value.b)) or 1
        if isinstance(value, Min | Max):
            return gcd(*map(self.divisor_of, value.args)) or 1
        if isinstance(value, Where):
            return gcd(self.divisor_of(value.a), self.divisor_of(value.b)) or 1
        return 1

    def nonnegative(self, value: Expr) -> bool:
        """Return whether `value >= 0` is proved."""
        proved = self._nonnegative.get(value)
        if proved is None:
            proved = self._nonnegative[value] = self._prove(value)
        return proved

    def positive(self, value: Expr) -> bool:
        """Return whether `value > 0` is proved."""
        return self.nonnegative(value - 1)

    def _prove(self, value: Expr) -> bool:
        decided = self._by_interval(value)
        if decided is not None:
            return decided
        if self._eliminate(value, [_FUEL]):
            return True
        return any(
            self._eliminate(value - slack, [_FUEL])
            for slack in self._slacks
            if not slack.free_symbols.isdisjoint(value.free_symbols)
        )

    def _by_interval(self, value: Expr) -> bool | None:
        low, high = self.bounds(value)
        if low is not None and low >= 0:
            return True
        return False if high is not None and high < 0 else None

    def _eliminate(self, value: Expr, fuel: list[int]) -> bool:
        """Prove `value >= 0` by replacing atoms by their extreme values, one at a time.

        `fuel` holds the number of steps left, shared by all branches of one search.
        """
        decided = self._by_interval(value)
        if decided is not None or fuel[0] <= 0:
            return bool(decided)
        fuel[0] -= 1
        for atom in self._bounded_atoms(value):
            coefficient, rest = _coefficient(value, atom)
            if coefficient is ZERO:
                continue
            if self._by_interval(coefficient):
                ends = self._ends(atom, coefficient, least=True)
            elif self._by_interval(mul(MINUS_ONE, coefficient)):
                ends = self._ends(atom, coefficient, least=False)
            else:
                continue
            tried = False
            for product in ends:
                tried = True
                if self._eliminate(rest + product, fuel):
                    return True
            if tried:
                return False  # the order of elimination does not matter, so the first one decides
        return False

    def _bounded_atoms(self, value: Expr) -> list[Expr]:
        """Return the atoms to eliminate: divisions, then inner symbols, then outer ones."""
        atoms: dict[Expr, None] = {}
        for term, _ in terms_of(value)[0]:
            for atom, power in term.factors if isinstance(term, Mul) else ((term, 1),):
                if power == 1 and (not isinstance(atom, Sym) or self.range_of(atom).hi is not None):
                    atoms[atom] = None
        return sorted(atoms, key=lambda atom: atom.sort_key, reverse=True)

    def _ends(self, atom: Expr, coefficient: Expr, least: bool) -> Iterator[Expr]:
        """Yield lower bounds of `coefficient * atom`.

        The coefficient is >= 0 when `least`, and <= 0 otherwise.
        """
        if isinstance(atom, Sym):
            lo, hi = self.range_of(atom)
            if least and lo is not None:
                yield coefficient * lo
            if not least and hi is not None:
                yield coefficient * hi
        elif isinstance(atom, Mod):
            if self._by_interval(atom.b - 1):
                yield ZERO if least else coefficient * (atom.b - 1)
        elif isinstance(atom, FloorDiv):
            yield from self._quotient_ends(atom, coefficient, least)
        elif isinstance(atom, Max if least else Min):
            for arg in atom.args:
                yield coefficient * arg
        end = self.bounds(atom)[0 if least else 1]
        if end is not None and not isinstance(atom, Sym):
            yield coefficient * end

    def _quotient_ends(self, atom: FloorDiv, coefficient: Expr, least: bool) -> Iterator[Expr]:
        if not self._by_interval(atom.b - 1):
            return
        ratio = exact_quotient(coefficient, atom.b)
        if ratio is not None:  # b*(a // b) lies in [a - b + 1, a]
            yield ratio * (atom.a - atom.b + 1) if least else ratio * atom.a
        if not least:
            top = self._upper(atom.a)
            if top is not None and top is not atom.a:
                yield coefficient * floordiv(top, atom.b)

    def _upper(self, value: Expr) -> Expr | None:
        """Return an upper bound of `value`, by replacing loop variables by their extremes."""
        for atom in self._bounded_atoms(value):
            coefficient, rest = _coefficient(value, atom)
            if not isinstance(atom, Sym) or coefficient is ZERO:
                continue
            lo, hi = self.range_of(atom)
            if self._by_interval(coefficient) and hi is not None:
                value = rest + coefficient * hi
            elif self._by_interval(mul(MINUS_ONE, coefficient)) and lo is not None:
                value = rest + coefficient * lo
            else:
                return None
        return value

    def known(self, cond: Cond) -> bool:
        """Return whether `cond` is proved for all values that the facts admit."""
        proved = self._known.get(cond)
        if proved is None:
            proved = self._known[cond] = self._decide(cond)
        return proved

    def _decide(self, cond: Cond) -> bool:
        if isinstance(cond, Bool):
            return cond.value
        if cond in self._assumed:
            return True
        if isinstance(cond, Le | Lt):
            strict = isinstance(cond, Lt)
            high, low = self.bounds(cond.a)[1], self.bounds(cond.b)[0]
            if high is not None and low is not None and high + strict <= low:
                return True
            return self.nonnegative(cond.b - cond.a - int(strict))
        if isinstance(cond, Eq):
            return self._equal(cond.a - cond.b)
        if isinstance(cond, Ne):
            return self._unequal(cond.a - cond.b)
        if isinstance(cond, And):
            return all(map(self.known, cond.args))
        assert isinstance(cond, Or)
        return any(map(self.known, cond.args))

    def _equal(self, difference: Expr) -> bool:
        difference = without_remainders(difference)
        if difference is ZERO or self.bounds(difference) == (0, 0):
            return True
        return self.nonnegative(difference) and self.nonnegative(-difference)

    def _unequal(self, difference: Expr) -> bool:
        if self.nonnegative(difference - 1) or self.nonnegative(-difference - 1):
            return True
        terms, const = terms_of(difference)
        divisor = gcd(*(c * self.divisor_of(term) for term, c in terms))
        return divisor > 1 and const % divisor != 0


def _coefficient(value: Expr, atom: Expr) -> tuple[Expr, Expr]:
    """Return (C, R) with `value == C*atom + R`, where `atom` is not a factor of a term of C."""
    terms, const = terms_of(value)
    coefficient: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    integer = 0
    for term, c in terms:
        ratio = divide_monomials(term, atom)
        if ratio is None or (ratio is not ONE and divide_monomials(ratio, atom) is not None):
            rest[term] = c
        elif ratio is ONE:
            integer += c
        else:
            coefficient[ratio] = c
    return sum_of_terms(coefficient, integer), sum_of_terms(rest, const)


def without_remainders(value: Expr) -> Expr:
    """Return `value` with every remainder in its terms replaced by `a - b*(a // b)`.

    Sums that are equal up to this identity become the same. The result is only for comparison: it
    is not recombined, and so may not be in normal form.
    """
    for _ in range(8):
        terms, const = terms_of(value)
        total: dict[Expr, int] = {}
        changed = False
        for term, c in terms:
            mods = [
                atom
                for atom, power in (term.factors if isinstance(term, Mul) else ((term, 1),))
                if isinstance(atom, Mod) and power == 1
            ]
            if not mods:
                total[term] = total.get(term, 0) + c
                continue
            changed = True
            atom = mods[0]
            rest = divide_monomials(term, atom)
            assert rest is not None
            plain = (rest * atom.a, -(rest * atom.b * floordiv(atom.a, atom.b)))
            const += sum(accumulate(total, part, c) for part in plain)
        value = raw_add(tuple(sorted((i for i in total.items() if i[1]), key=term_key)), const)
        if not changed:
            break
    return value
