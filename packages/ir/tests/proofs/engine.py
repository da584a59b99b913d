"""Statements about expressions, read three ways: by our constructors, by z3, and on integers.

A statement is a Python function of symbols. Called with `Sym`s it gives what the constructors make
of it; called with `Term`s it gives the same formula as z3 sees it, with nothing rewritten; called
with `int`s it gives its value. Division is Python's in all three: rounded to minus infinity.
"""

import itertools
import operator
from collections.abc import Callable, Iterator
from functools import reduce

import z3
from attrs import define, field

from gyrator_ir import expr as E

NAMES = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
TIMEOUT_MS = 1500
SMALL = range(-3, 5)
"""Values of each symbol where z3 gives up."""


@define
class World:
    """What z3 is told: facts, and quotients with their remainders by divisors that vary."""

    conditions: list = field(factory=list)
    quotients: dict = field(factory=dict)

    def symbol(self, name):
        return Term(self, z3.Int(name))

    def divided(self, a, b):
        """Return quotient and remainder; both mean nothing where `b` is 0."""
        b = z3.simplify(b)
        if z3.is_int_value(b) and b.as_long():
            n = b.as_long()
            whole = (a if n > 0 else -a) / abs(n)
            return whole, a - whole * n
        key = a.get_id(), b.get_id()
        if key not in self.quotients:
            q, r = z3.FreshInt("q"), z3.FreshInt("r")
            inside = z3.If(b > 0, z3.And(r >= 0, r < b), z3.And(r <= 0, r > b))
            self.conditions.append(z3.Implies(b != 0, z3.And(a == b * q + r, inside)))
            self.quotients[key] = q, r, a, b
        return self.quotients[key][:2]


class Term:
    """An integer of z3 with Python's operators; divisors are noted as not 0."""

    def __init__(self, world, value):
        self.world, self.value = world, value

    def _two(self, other):
        return self.value, other.value if isinstance(other, Term) else z3.IntVal(other)

    def _make(self, value):
        return Term(self.world, value)

    def _divide(self, a, b):
        self.world.conditions.append(b != 0)
        return tuple(map(self._make, self.world.divided(a, b)))

    __add__ = __radd__ = lambda self, other: self._make(operator.add(*self._two(other)))
    __mul__ = __rmul__ = lambda self, other: self._make(operator.mul(*self._two(other)))
    __sub__ = lambda self, other: self._make(operator.sub(*self._two(other)))
    __rsub__ = lambda self, other: self._make(-operator.sub(*self._two(other)))
    __neg__ = lambda self: self._make(-self.value)
    __floordiv__ = lambda self, other: self._divide(*self._two(other))[0]
    __mod__ = lambda self, other: self._divide(*self._two(other))[1]
    __rfloordiv__ = lambda self, other: self._divide(z3.IntVal(other), self.value)[0]
    __rmod__ = lambda self, other: self._divide(z3.IntVal(other), self.value)[1]
    __pow__ = lambda self, n: reduce(operator.mul, [self] * n)


class Words:
    """What operators do not say, for z3 and integers: the names of `gyrator_ir.expr`."""

    @staticmethod
    def _pick(values, chosen):
        terms = [v for v in values if isinstance(v, Term)]
        if not terms:
            return chosen(values)
        world, raw = (
            terms[0].world,
            [v.value if isinstance(v, Term) else z3.IntVal(v) for v in values],
        )
        less = operator.lt if chosen is min else operator.gt
        return Term(world, reduce(lambda a, b: z3.If(less(a, b), a, b), raw))

    def minimum(self, *values):
        return self._pick(values, min)

    def maximum(self, *values):
        return self._pick(values, max)

    def absolute(self, value):
        return self.maximum(value, -value)

    def ceildiv(self, a, b):
        return -((-a) // b)

    def sum_of(self, values):
        return reduce(operator.add, values, 0)

    def product_of(self, values):
        return reduce(operator.mul, values, 1)

    def where(self, cond, a, b):
        if isinstance(cond, bool):
            return a if cond else b
        terms = [v if isinstance(v, Term) else None for v in (a, b)]
        world = next(t.world for t in terms if t is not None) if any(terms) else World()
        raw = [v.value if isinstance(v, Term) else z3.IntVal(v) for v in (a, b)]
        return Term(world, z3.If(cond, *raw))

    def relation(self, op, a, b):
        return getattr(operator, NAMES[op])(
            *(v.value if isinstance(v, Term) else v for v in (a, b))
        )

    def negate(self, cond):
        return not cond if isinstance(cond, bool) else z3.Not(cond)

    def all_of(self, conds):
        conds = list(conds)
        plain = all(isinstance(c, bool) for c in conds)
        return all(conds) if plain else z3.And(*conds)

    def any_of(self, conds):
        conds = list(conds)
        plain = all(isinstance(c, bool) for c in conds)
        return any(conds) if plain else z3.Or(*conds)


def term_of(node, world):
    """Return an expression or condition of ours as z3 sees it."""
    match node:
        case E.Const():
            return z3.IntVal(node.value)
        case E.Sym():
            return z3.Int(node.name)
        case E.Add():
            return z3.Sum(node.const, *(c * term_of(t, world) for t, c in node.terms))
        case E.Mul():
            parts = [term_of(a, world) for a, power in node.factors for _ in range(power)]
            return z3.Product(*parts)
        case E.FloorDiv() | E.Mod():
            both = world.divided(term_of(node.a, world), term_of(node.b, world))
            return both[isinstance(node, E.Mod)]
        case E.Min() | E.Max():
            less = operator.lt if isinstance(node, E.Min) else operator.gt
            args = [term_of(a, world) for a in node.args]
            return reduce(lambda a, b: z3.If(less(a, b), a, b), args)
        case E.Where():
            return z3.If(*(term_of(n, world) for n in (node.cond, node.a, node.b)))
        case E.Bool():
            return z3.BoolVal(node.value)
        case E.And() | E.Or():
            join = z3.And if isinstance(node, E.And) else z3.Or
            return join(*(term_of(a, world) for a in node.args))
        case E.Eq() | E.Ne() | E.Lt() | E.Le():
            compare = getattr(operator, type(node).__name__.lower())
            return compare(term_of(node.a, world), term_of(node.b, world))
    raise TypeError(node)


def told(facts, symbols, world):
    """Return facts as conditions: on z3's integers."""
    assumptions = [z3.Int(s.name) >= 0 for s in symbols if s.name[0] in "ir"]
    for s, (low, top) in facts.ranges:
        assumptions += [z3.Int(s.name) >= low] if low is not None else []
        assumptions += [z3.Int(s.name) <= term_of(top, world)] if top is not None else []
    assumptions += [z3.Int(s.name) % n == 0 for s, n in facts.divisors]
    assumptions += [z3.Int(s.name) == term_of(e, world) for s, e in facts.equalities]
    return assumptions + [term_of(c, world) for c in facts.assumed]


def admitted(facts, values):
    """Say whether integers agree with facts."""
    named = dict(values)
    if any(n < 0 for s, n in named.items() if s.name[0] in "ir"):
        return False
    try:
        return (
            all(
                (low is None or named[s] >= low)
                and (top is None or named[s] <= E.evaluate(top, named))
                for s, (low, top) in facts.ranges
                if s in named and (top is None or top.free_symbols <= named.keys())
            )
            and all(named[s] % n == 0 for s, n in facts.divisors if s in named)
            and all(named[s] == E.evaluate(e, named) for s, e in facts.equalities if s in named)
            and all(E.holds(c, named) for c in facts.assumed if c.free_symbols <= named.keys())
        )
    except ZeroDivisionError:
        return False


Statement = Callable[..., object]


def valid(claims, world, facts, symbols):
    """Return True or False as z3 finds that claims hold for all integers, None if it gives up."""
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    formulas = [claim for claim in claims if not z3.is_true(claim)]
    solver.add(*told(facts, symbols, world), *world.conditions, z3.Not(z3.And(*formulas)))
    answer = solver.check()
    return None if answer == z3.unknown else answer == z3.unsat


def points(symbols, facts) -> Iterator[dict]:
    """Yield small values of all symbols that the facts admit."""
    steps, ranges = dict(facts.divisors), dict(facts.ranges)
    domains = []
    for s in symbols:
        step, low = steps.get(s, 1), ranges[s].lo if s in ranges else None
        first = SMALL[0] if low is None else -(-low // step)
        domains.append([step * (first + k) for k in range(len(SMALL))])
    for values in itertools.product(*domains):
        named = dict(zip(symbols, values, strict=True))
        if admitted(facts, named):
            yield named
