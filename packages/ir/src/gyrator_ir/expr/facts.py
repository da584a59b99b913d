"""Facts about the symbols of a program: an immutable value that is part of the program."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import TypeVar

from attrs import evolve, field

from gyrator_ir.define import frozen
from gyrator_ir.expr.build import minimum
from gyrator_ir.expr.conditions import eq, ge, le
from gyrator_ir.expr.nodes import (
    ZERO,
    And,
    Bool,
    Cond,
    Const,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Lt,
    Mod,
    Sym,
    expr,
    expr_error,
)
from gyrator_ir.expr.prover import Prover, Range
from gyrator_ir.expr.simplify import Simplifier
from gyrator_ir.expr.walk import evaluate, linear, subs

AnyNode = TypeVar("AnyNode", Expr, Cond)
Value = TypeVar("Value")


class _Engine:
    """The prover and simplifier of one set of facts, created on first use."""

    __slots__ = ("hints", "prover", "simplify")

    def __init__(self, facts: ShapeFacts) -> None:
        equal = dict(facts.equalities)
        ranges = {
            sym: Range(r.lo, None if r.hi is None else subs(r.hi, equal)) for sym, r in facts.ranges
        }
        assumed = tuple(subs(cond, equal) for cond in facts.assumed)
        self.prover = Prover(ranges, dict(facts.divisors), assumed)
        self.simplify = Simplifier(self.prover)
        self.hints = dict(facts.hints)


class _Slot:
    """Caches an engine. Two threads may each create one, which is harmless: their answers agree."""

    __slots__ = ("engine",)

    def __init__(self) -> None:
        self.engine: _Engine | None = None


def _ordered(items: Mapping[Sym, Value]) -> tuple[tuple[Sym, Value], ...]:
    return tuple(sorted(items.items(), key=lambda item: item[0].sort_key))


@frozen(slots=True)
class ShapeFacts:
    """Ranges, divisibility, equalities, assumed conditions and example values of symbols.

    Build one with `ShapeFacts()` and the `with_*` methods, each of which returns a new value. Loop
    variables (ITER, REDUCE) are implicitly >= 0; nothing is assumed about sizes. Answers of
    `known*` are sound but incomplete: False means "not proved".

    All fields are sorted tuples, so that equal facts compare equal.
    """

    ranges: tuple[tuple[Sym, Range], ...] = ()  # inclusive ends
    divisors: tuple[tuple[Sym, int], ...] = ()  # the symbol is a multiple of the integer
    equalities: tuple[tuple[Sym, Expr], ...] = ()  # the symbol is replaced by the expression
    hints: tuple[tuple[Sym, int], ...] = ()  # a typical value, for heuristics and never for proofs
    assumed: tuple[Cond, ...] = ()  # conditions that the other fields cannot express
    _slot: _Slot = field(init=False, eq=False, repr=False, order=False, factory=_Slot)

    # -- building -------------------------------------------------------------------------------

    def with_range(
        self, sym: Sym, lo: int | None = None, hi: Expr | int | None = None
    ) -> ShapeFacts:
        """Return these facts and `lo <= sym <= hi`, intersected with the known range of `sym`."""
        target = dict(self.equalities).get(sym)
        if target is not None:
            return _with_bounds_of(self, target, lo, hi)
        ranges = dict(self.ranges)
        old = ranges.get(sym, Range(None, None))
        if old.lo is not None:
            lo = old.lo if lo is None else max(lo, old.lo)
        top = None if hi is None else _resolved(self, expr(hi))
        if top is not None and _depends_on(self, top, sym):
            return evolve(self, assumed=_merged(self.assumed, le(sym, top))).with_range(sym, lo)
        if old.hi is not None:
            top = old.hi if top is None else minimum(top, old.hi)
        ranges[sym] = Range(lo, top)
        return evolve(self, ranges=_ordered(ranges))

    def with_ranges(self, extents: Mapping[Sym, Expr | int]) -> ShapeFacts:
        """Return these facts and `0 <= sym < extent` for each loop variable.

        The facts hold inside the loops, so the extents are positive, which is added too.
        """
        tops = {sym: expr(extent) for sym, extent in extents.items()}
        if not _is_fresh(self, tops):
            facts = self
            for sym, top in tops.items():
                facts = facts.with_range(sym, 0, top - 1).with_cond(ge(top, 1))
            return facts
        ranges = dict(self.ranges)
        conds = []
        for sym, top in tops.items():
            ranges[sym] = Range(0, top - 1)
            if isinstance(top, Sym):
                lo, hi = ranges.get(top, Range(None, None))
                ranges[top] = Range(1 if lo is None else max(lo, 1), hi)
            elif not isinstance(top, Const):
                conds.append(ge(top, 1))
        facts = evolve(self, ranges=_ordered(ranges))
        for cond in dict.fromkeys(conds):
            facts = facts.with_cond(cond)
        return facts

    def with_divisible(self, sym: Sym, by: int) -> ShapeFacts:
        """Return these facts and `sym % by == 0`, for a positive integer `by`.

        Raises:
            ExprError: GY-EXPR-005, if `by` is not positive.
        """
        if by <= 0:
            raise expr_error("GY-EXPR-005", f"{sym.name} cannot be declared divisible by {by}")
        target = dict(self.equalities).get(sym)
        if target is not None:
            if isinstance(target, Sym):
                return self.with_divisible(target, by)
            return evolve(self, assumed=_merged(self.assumed, eq(target % by, 0)))
        divisors = dict(self.divisors)
        divisors[sym] = lcm(divisors.get(sym, 1), by)
        return evolve(self, divisors=_ordered(divisors))

    def with_hint(self, sym: Sym, value: int) -> ShapeFacts:
        """Return these facts with `value` as the typical value of `sym`."""
        return evolve(self, hints=_ordered({**dict(self.hints), sym: value}))

    def with_equal(self, a: Expr | int, b: Expr | int) -> ShapeFacts:
        """Return these facts and `a == b`.

        If the equation can be solved for a symbol that occurs linearly with coefficient one, the
        last such symbol in order is substituted in all facts and queries. Otherwise the equation
        becomes an assumed condition.
        """
        equal = dict(self.equalities)
        difference = subs(expr(a) - expr(b), equal)
        cond = eq(difference, 0)
        if isinstance(cond, Bool):
            return self if cond.value else evolve(self, assumed=_merged(self.assumed, cond))
        solved = _solve(difference)
        if solved is None:
            return evolve(self, assumed=_merged(self.assumed, cond))
        sym, value = solved
        return self._with_substitution(sym, value)

    def _with_substitution(self, sym: Sym, value: Expr) -> ShapeFacts:
        step = {sym: value}
        equal = {old: subs(target, step) for old, target in self.equalities}
        equal[sym] = value
        ranges, divisors = dict(self.ranges), dict(self.divisors)
        own, divisor = ranges.pop(sym, None), divisors.pop(sym, None)
        rebuilt = ShapeFacts(
            divisors=_ordered(divisors), equalities=_ordered(equal), hints=self.hints
        )
        for other, declared in _ordered(ranges):
            top = None if declared.hi is None else subs(declared.hi, step)
            rebuilt = rebuilt.with_range(other, declared.lo, top)
        for cond in self.assumed:
            rebuilt = rebuilt.with_cond(subs(cond, step))
        if own is not None:
            top = None if own.hi is None else subs(own.hi, step)
            rebuilt = _with_bounds_of(rebuilt, value, own.lo, top)
        if divisor is not None:
            rebuilt = rebuilt.with_divisible(sym, divisor)
        return rebuilt

    def with_cond(self, cond: Cond) -> ShapeFacts:
        """Return these facts and `cond`, expressed as ranges and equalities where possible."""
        cond = subs(cond, dict(self.equalities))
        if isinstance(cond, Bool) and cond.value:
            return self
        if isinstance(cond, And):
            facts = self
            for arg in cond.args:
                facts = facts.with_cond(arg)
            return facts
        if isinstance(cond, Eq):
            left = cond.a
            if cond.b is ZERO and isinstance(left, Mod) and isinstance(left.b, Const):
                if isinstance(left.a, Sym):
                    return self.with_divisible(left.a, left.b.value)
                return evolve(self, assumed=_merged(self.assumed, cond))
            return self.with_equal(left, cond.b)
        if isinstance(cond, Le | Lt):
            strict = 1 if isinstance(cond, Lt) else 0
            if isinstance(cond.b, Sym) and isinstance(cond.a, Const):
                return self.with_range(cond.b, cond.a.value + strict)
            if isinstance(cond.a, Sym) and cond.a not in cond.b.free_symbols:
                return self.with_range(cond.a, None, cond.b - strict)
        return evolve(self, assumed=_merged(self.assumed, cond))

    # -- queries --------------------------------------------------------------------------------

    def _engine(self) -> _Engine:
        engine = self._slot.engine
        if engine is None:
            engine = self._slot.engine = _Engine(self)
        return engine

    def simplify(self, node: AnyNode) -> AnyNode:
        """Return a simpler node that is equal for all values that the facts admit."""
        return self._engine().simplify(_resolved(self, node))

    def bounds(self, value: Expr) -> tuple[int | None, int | None]:
        """Return inclusive integer bounds of `value`; None for an unbounded side."""
        return self._engine().prover.bounds(self.simplify(value))

    def known(self, cond: Cond) -> bool:
        """Return whether `cond` is proved for all values that the facts admit."""
        engine = self._engine()
        cond = _resolved(self, cond)
        if engine.prover.known(cond):
            return True
        simpler = engine.simplify(cond)
        return simpler is not cond and engine.prover.known(simpler)

    def known_nonnegative(self, value: Expr | int) -> bool:
        """Return whether `value >= 0` is proved."""
        return self.known(ge(value, 0))

    def known_positive(self, value: Expr | int) -> bool:
        """Return whether `value > 0` is proved."""
        return self.known(ge(value, 1))

    def nonnegative_division(self, node: FloorDiv | Mod) -> bool:
        """Return whether the numerator is proved >= 0 and the divisor > 0.

        For such a node, C's truncating `/` and `%` equal floor division and its remainder.
        """
        prover = self._engine().prover
        a, b = _resolved(self, node.a), _resolved(self, node.b)
        return prover.nonnegative(a) and prover.positive(b)

    def hint(self, value: Expr | int) -> int | None:
        """Return a typical value of `value`, or None if a symbol has no hint."""
        value = expr(value)
        if isinstance(value, Const):
            return value.value
        hints = self._engine().hints
        for candidate in (value, _resolved(self, value)):
            if all(sym in hints for sym in candidate.free_symbols):
                try:
                    return evaluate(candidate, hints)
                except ZeroDivisionError:
                    return None
        return None


def _merged(assumed: tuple[Cond, ...], cond: Cond) -> tuple[Cond, ...]:
    if cond in assumed or (isinstance(cond, Bool) and cond.value):
        return assumed
    return tuple(sorted((*assumed, cond), key=lambda c: c.sort_key))


def _solve(difference: Expr) -> tuple[Sym, Expr] | None:
    """Solve `difference == 0` for its last symbol that is a term with coefficient 1 or -1."""
    for sym in sorted(difference.free_symbols, key=lambda s: s.sort_key, reverse=True):
        split = linear(difference, (sym,))
        if split is None:
            continue
        coefficients, rest = split
        unit = coefficients[sym]
        if isinstance(unit, Const) and unit.value in (1, -1):
            return sym, rest * -unit.value
    return None


def _with_bounds_of(
    facts: ShapeFacts, value: Expr, lo: int | None, hi: Expr | int | None
) -> ShapeFacts:
    if lo is not None:
        facts = facts.with_cond(ge(value, lo))
    if hi is not None:
        facts = facts.with_cond(le(value, hi))
    return facts


def _depends_on(facts: ShapeFacts, value: Expr, sym: Sym) -> bool:
    """Return whether the ranges of the symbols of `value` depend on `sym`, transitively."""
    ranges = dict(facts.ranges)
    visited: set[Sym] = set()
    stack = list(value.free_symbols)
    while stack:
        current = stack.pop()
        if current is sym:
            return True
        if current in visited:
            continue
        visited.add(current)
        declared = ranges.get(current)
        if declared is not None and declared.hi is not None:
            stack.extend(declared.hi.free_symbols)
    return False


def _is_fresh(facts: ShapeFacts, tops: Mapping[Sym, Expr]) -> bool:
    """Return whether the symbols of `tops` occur neither in ranges nor in the extents."""
    if facts.equalities:
        return False
    if any(sym in tops for sym, _ in facts.ranges):
        return False
    bounds = [top for _, (_, top) in facts.ranges if top is not None]
    return all(top.free_symbols.isdisjoint(tops) for top in (*bounds, *tops.values()))


def _resolved(facts: ShapeFacts, node: AnyNode) -> AnyNode:
    return subs(node, dict(facts.equalities)) if facts.equalities else node
