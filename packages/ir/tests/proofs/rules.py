"""The rewrites of `gyrator_ir.expr`, each as statements that make it fire.

`w` has the words of `gyrator_ir.expr`; symbols follow in the order of `symbols`, then the constants
of `over`, of which every combination is a statement.
"""

import itertools
from collections.abc import Callable, Sequence

from attrs import frozen

from gyrator_ir.expr import ShapeFacts, Sym, ge, le

NONE = ShapeFacts()
X, Y, S, T, I, J, R = (Sym(n) for n in ("s8", "s9", "s0", "s1", "i0", "i1", "r0"))
SIZES = NONE.with_range(S, 1).with_range(T, 1)
LOOPS = SIZES.with_ranges({I: S, J: T})
FEW = (-3, -1, 1, 2, 4)


@frozen
class Rule:
    """A rewrite, or a claim of the prover."""

    name: str
    source: str
    """Functions that make it, `module.function`."""
    statements: tuple[Callable[..., object], ...]
    symbols: tuple[Sym, ...] = (X, Y)
    over: tuple[Sequence[int], ...] = ()
    facts: ShapeFacts = NONE

    def cases(self):
        """Yield each statement with each choice of constants."""
        for statement in self.statements:
            for constants in itertools.product(*self.over):
                yield statement, constants


def rule(name, source, *statements, symbols=(X, Y), over=(), facts=NONE):
    return Rule(name, source, statements, symbols, over, facts)


BUILD = (
    rule(
        "collect equal terms",
        "build.sum_of_terms",
        lambda w, x, y, c, d: c * x + d * y + d * x + c,
        over=(range(-3, 4), range(-3, 4)),
    ),
    rule(
        "sum of many",
        "build.sum_of",
        lambda w, x, y, c: w.sum_of([x, c, y, x, 2]),
        over=(range(-1, 2),),
    ),
    rule(
        "expand a product",
        "build._expand",
        lambda w, x, y, c, d: (x + c) * (y + d),
        lambda w, x, y, c, d: (x * c + y + d) * (y - x),
        over=(FEW, range(-2, 3)),
    ),
    rule(
        "multiply a sum with quotients",
        "build.mul",
        lambda w, x, y, c: (x // 3 + y % 4 + 1) * c,
        over=(range(-2, 3),),
    ),
    rule(
        "multiply monomials",
        "build.mul_monomials",
        lambda w, x, y: x * y * x * (y * x),
        lambda w, x, y: w.product_of([x, 2, y, x]),
    ),
    rule("product of none", "build.product_of", lambda w, x, y: w.product_of([]) * x),
    rule(
        "least and greatest",
        "build._extremum",
        lambda w, x, y, c, d: w.minimum(x + c, w.minimum(y, x + d), y + d),
        lambda w, x, y, c, d: w.maximum(x + c, w.maximum(y, x + d), c) + w.minimum(x),
        over=(range(-2, 3), range(-2, 3)),
    ),
    rule("absolute value", "build.absolute", lambda w, x, y: w.absolute(x - y)),
    rule(
        "select",
        "build.where",
        lambda w, x, y, c: w.where(w.relation("<", x, y + c), x, y),
        lambda w, x, y, c: w.where(w.relation("!=", x, c), x + y, y),
        lambda w, x, y, c: w.where(w.relation("<", x, x + c), x, y),
        lambda w, x, y, c: w.where(w.relation("<", x, y), x * c, x * c),
        over=(range(-2, 3),),
    ),
)
DIVISORS = (-4, -3, -1, 1, 2, 3, 4, 6)
DIVISION = (
    rule(
        "divide by an integer",
        "division.floordiv",
        lambda w, x, y, c: x // c,
        lambda w, x, y, c: (x + y * 0) // c + (x * 0 + 7) // c,
        over=(DIVISORS,),
    ),
    rule(
        "remainder by an integer",
        "division.mod",
        lambda w, x, y, c: x % c,
        lambda w, x, y, c: (x * 0 + 7) % c,
        over=(DIVISORS,),
    ),
    rule("round up", "division.ceildiv", lambda w, x, y, c: w.ceildiv(x + y, c), over=(DIVISORS,)),
    rule(
        "multiples leave a quotient",
        "division._reduce",
        lambda w, x, y, a, b, e, c: (a * x + b * y + e) // c,
        over=((-6, -4, 2, 3, 12), (0, 1, -2, 6), (-5, 0, 7), (2, 4, 6, -3)),
    ),
    rule(
        "multiples leave a remainder",
        "division._reduce",
        lambda w, x, y, a, b, e, c: (a * x + b * y + e) % c,
        over=((-6, -4, 2, 3, 12), (0, 1, -2, 6), (-5, 0, 7), (2, 4, 6, -3)),
    ),
    rule(
        "ranges of remainders decide",
        "division._constant_quotient",
        lambda w, x, y, c, e: (x % 3 + 2 * (y % 2) + e) // c,
        lambda w, x, y, c, e: (x % 3 - y % 2 + e) % c,
        over=((3, 5, 8), (-4, 0, 1, 9)),
    ),
    rule(
        "quotient of a quotient",
        "division._core_quotient",
        lambda w, x, y, c, e: (x // 3 + e * y + e) // c,
        over=((2, 3, 4), (-1, 0, 2)),
    ),
    rule(
        "quotient of a quotient by a size",
        "division._core_quotient",
        lambda w, x, s: (x // s) // 3,
        symbols=(X, S),
        facts=SIZES,
    ),
    rule(
        "quotient of a remainder",
        "division._core_quotient",
        lambda w, x, y, c, n: (x % (c * n)) // c,
        over=((2, 3, 4), (2, 3, 5)),
    ),
    rule(
        "remainder of remainders",
        "division._core_remainder",
        lambda w, x, y, c, k: (k * (x % (2 * c)) + y) % c,
        over=((2, 3, 6), (-2, -1, 1, 5)),
    ),
    rule(
        "divide by a size",
        "division._symbolic_quotient",
        lambda w, x, s: s // s + (x * 0) // s,
        lambda w, x, s: (s * x + 5) // s,
        lambda w, x, s: x // (-s),
        lambda w, x, s: (-x) // (-s),
        lambda w, x, s: (6 * x) // (4 * s),
        lambda w, x, s: 7 // s,
        symbols=(X, S),
    ),
    rule(
        "remainder by a size",
        "division._symbolic_remainder",
        lambda w, x, s: s % s + (x * 0) % s,
        lambda w, x, s: (s * x + 5) % s,
        lambda w, x, s: x % (-s),
        lambda w, x, s: (6 * x) % (4 * s),
        lambda w, x, s: (s * x) % s,
        symbols=(X, S),
    ),
    rule(
        "remainder of a remainder by a size",
        "division._symbolic_remainder",
        lambda w, x, s: (x % (2 * s) + 1) % s,
        symbols=(X, S),
    ),
    rule(
        "factors cancel",
        "division._reduce_symbolic",
        lambda w, x, s, t: (s * x) // (s * t),
        lambda w, x, s, t: (s * x) % (s * t),
        lambda w, x, s, t: (s * t * x + s) // (s * t),
        symbols=(X, S, T),
    ),
    rule(
        "divide by a sum",
        "division._long_division",
        lambda w, x, s: ((s + 1) * x + 3) // (s + 1),
        lambda w, x, s: ((s + 1) * (s + 2)) // (s + 1),
        lambda w, x, s: (s * s - 1) // (s + 1),
        lambda w, x, s: (2 * s + 2 + x) % (s + 1),
        lambda w, x, s: (s * x + 1) % (s + 2),
        symbols=(X, S),
    ),
    rule(
        "multiples of an integer",
        "division.extract_multiples",
        lambda w, i, s: (6 * i + 4 * s + 9) // 8 + (12 * i + 4 * s + 9) % 12,
        symbols=(I, S),
        facts=LOOPS,
    ),
)
RECOMBINE = (
    rule(
        "join",
        "recombine._join",
        lambda w, x, y, k, d: k * (x % d) + k * d * (x // d) + y,
        lambda w, x, y, k, d: y * (x % d) + y * d * (x // d),
        over=(FEW, (2, 3, 6)),
    ),
    rule(
        "join, by a size", "recombine._join", lambda w, x, s: x % s + s * (x // s), symbols=(X, S)
    ),
    rule(
        "round",
        "recombine._round",
        lambda w, x, y, k, d: k * x - k * (x % d) + y,
        over=(FEW, (2, 3, 6)),
    ),
    rule(
        "rest",
        "recombine._rest",
        lambda w, x, y, k, d: k * x - k * d * (x // d),
        lambda w, x, y, k, d: y * x - y * d * (x // d),
        over=(FEW, (2, 3, 6)),
    ),
    rule(
        "rest, by a size",
        "recombine._rest",
        lambda w, x, s: x - s * (x // s),
        lambda w, x, s: x - 2 * s * (x // (2 * s)),
        lambda w, x, s: s * x + x - s * (x // (s + 1)),
        symbols=(X, S),
    ),
    rule(
        "nest",
        "recombine._nest",
        lambda w, x, y, d, n: x % d + d * ((x // d) % n),
        lambda w, x, y, d, n: (x + y) % d + d * (((x + y) // d + 1) % n),
        over=((2, 3), (2, 5)),
    ),
    rule(
        "nest, by a size",
        "recombine._nest",
        lambda w, x, s: x % s + s * ((x // s) % 3),
        symbols=(X, S),
    ),
)
RELATIONS = ("==", "!=", "<", "<=", ">", ">=")
CONDITIONS = (
    *(
        rule(
            f"normal form of {op}",
            "conditions.relation",
            lambda w, x, y, c, d, e, op=op: w.relation(op, c * x + e, d * y + 2),
            over=((-4, -1, 0, 2, 6), (-2, 0, 3), (-3, 0, 2, 5)),
        )
        for op in RELATIONS
    ),
    *(
        rule(
            f"not {op}",
            "conditions.negate",
            lambda w, x, y, op=op: w.negate(w.relation(op, x, y)),
            lambda w, x, y, op=op: w.negate(w.relation(op, 2, 3)),
        )
        for op in RELATIONS
    ),
    rule(
        "and, or",
        "conditions._join",
        lambda w, x, y: w.all_of([w.relation("<", x, y), w.relation("==", x, 2)]),
        lambda w, x, y: w.negate(w.all_of([w.relation("<", x, y), w.relation("==", x, 2)])),
        lambda w, x, y: w.negate(w.any_of([w.relation("<", x, y), w.relation("!=", x, 2)])),
        lambda w, x, y: w.any_of([w.relation("<", x, y), w.relation(">=", x, y)]),
        lambda w, x, y: w.all_of([w.relation("<", x, y), w.relation(">=", x, y)]),
        lambda w, x, y: w.all_of([w.relation("<", x, y), w.relation("<", 3, 2)]),
        lambda w, x, y: w.all_of([w.relation("<", 2, 3), w.relation("<", 1, 3)]),
        lambda w, x, y: w.all_of([w.relation("<", x, y), w.relation("<", 1, 3)]),
        lambda w, x, y: w.all_of(
            [w.relation("<", x, y), w.all_of([w.relation("==", x, 2), w.relation("==", y, 2)])]
        ),
    ),
)
INSIDE = NONE.with_ranges({I: 6, J: 8})
DIVISIBLE = NONE.with_divisible(S, 8).with_divisible(T, 6).with_range(S, 1).with_range(T, 1)
SIMPLIFY = (
    rule(
        "only one value is possible",
        "simplify._step",
        lambda w, x, y: x + y,
        lambda w, x, y: x * 2,
        facts=NONE.with_range(X, 3, 3),
    ),
    rule(
        "in range of the divisor",
        "simplify._in_range",
        lambda w, i, j, c: (i + c) // 6 + (i + c) % 6,
        symbols=(I, J),
        over=(range(-7, 3),),
        facts=INSIDE,
    ),
    rule(
        "in range of a size",
        "simplify._in_range",
        lambda w, i, j, s, t: i // s + i % s,
        lambda w, i, j, s, t: (i * t + j) // t,
        lambda w, i, j, s, t: (i * t + j) % (s * t),
        symbols=(I, J, S, T),
        facts=LOOPS,
    ),
    rule(
        "divisible by facts",
        "simplify._multiples_by_facts",
        lambda w, s, t, c: (s + c) // 4,
        lambda w, s, t, c: (s + t + c) // 2,
        lambda w, s, t, c: (s + c) % 4,
        lambda w, s, t, c: s % 8 + t % 4 + s // 16,
        symbols=(S, T),
        over=(range(-1, 4),),
        facts=DIVISIBLE,
    ),
    rule(
        "split by a common divisor",
        "simplify._split",
        lambda w, i, j, c: (8 * i + j) // c,
        lambda w, i, j, c: (8 * i + j) % c,
        symbols=(I, J),
        over=((16, 24, 12),),
        facts=INSIDE,
    ),
    rule(
        "split by a size",
        "simplify._split",
        lambda w, i, j, s, t: (i * t + j) // (2 * t),
        lambda w, i, j, s, t: (i * t + j) % (2 * t),
        lambda w, i, j, s, t: (i * t + i + j) // (2 * t + 2),
        symbols=(I, J, S, T),
        facts=LOOPS,
    ),
    rule(
        "quotient of a quotient, divisors positive",
        "simplify._floordiv",
        lambda w, x, s, t: (x // s) // t,
        symbols=(X, S, T),
        facts=SIZES,
    ),
    rule(
        "quotient of a remainder, divisors positive",
        "simplify._floordiv",
        lambda w, x, s: (x % (3 * s)) // s,
        symbols=(X, S),
        facts=SIZES,
    ),
    rule(
        "one multiple is left",
        "simplify._mod",
        lambda w, x, y, c: (x + c) % 4 + y,
        over=(range(-1, 3),),
        facts=NONE.with_range(X, 5, 6),
    ),
    rule(
        "least and greatest by facts",
        "simplify._extremum",
        lambda w, i, j, c: w.minimum(i, j + c, 6),
        lambda w, i, j, c: w.maximum(i, j + c, -1),
        symbols=(I, J),
        over=((-8, 0, 6, 8),),
        facts=INSIDE,
    ),
    rule(
        "recombine with positive sizes",
        "simplify._sum",
        lambda w, x, s, t: x % s + s * ((x // s) % t),
        symbols=(X, S, T),
        facts=SIZES,
    ),
    rule(
        "exact quotients",
        "simplify._exact_division",
        lambda w, s, t: 8 * (s // 16) + 8 * (s // 8),
        lambda w, s, t: 4 * ((s + 8) // 4),
        lambda w, s, t: 6 * t * (s // 3) + (4 * s * t + s) // 4,
        lambda w, s, t: 6 * ((s * t) // 6) * s,
        symbols=(S, T),
        facts=DIVISIBLE,
    ),
    rule(
        "conditions by facts",
        "simplify._condition",
        lambda w, i, j, c: w.relation("<", i, c),
        lambda w, i, j, c: w.relation("==", i + j, c),
        lambda w, i, j, c: w.relation("!=", i, c),
        lambda w, i, j, c: w.relation("<=", i + j, c),
        symbols=(I, J),
        over=((-2, 0, 5, 6, 13),),
        facts=INSIDE,
    ),
)
OPEN = NONE.with_range(X, -3).with_range(Y, None, 4)
PROVER = (
    *(
        rule(
            f"bounds of products, {name}",
            "prover._times",
            lambda w, x, y: x * y,
            lambda w, x, y: x * x + y**3,
            lambda w, x, y: (x * x) * y - 2 * x,
            facts=facts,
        )
        for name, facts in {
            "closed": NONE.with_range(X, -2, 3).with_range(Y, -4, -1),
            "open": OPEN,
            "positive": NONE.with_range(X, 2).with_range(Y, 3, 5),
            "unknown": NONE.with_range(X, 0),
            "zero": NONE.with_range(X, 0, 0).with_range(Y, 1),
        }.items()
    ),
    *(
        rule(
            f"bounds of quotients and remainders, {name}",
            "prover._quotient",
            lambda w, x, s: x // s,
            lambda w, x, s: x % s,
            lambda w, x, s: w.minimum(x, s) // 3,
            lambda w, x, s: w.where(w.relation("<", x, 3), x, s),
            lambda w, x, s: w.maximum(x, s, 1),
            symbols=(X, S),
            facts=facts,
        )
        for name, facts in {
            "closed": NONE.with_range(X, -7, 9).with_range(S, 2, 4),
            "open": SIZES.with_range(X, 2),
            "below": SIZES.with_range(X, None, -2),
            "small": NONE.with_range(X, 1, 3).with_range(S, 5),
            "unknown": NONE,
            "up": SIZES.with_range(X, 0, 3),
        }.items()
    ),
    rule(
        "divisors",
        "prover.divisor_of",
        lambda w, s, t: s * t + 4 * s,
        lambda w, s, t: s // 4,
        lambda w, s, t: s // 3,
        lambda w, s, t: s % (4 * t),
        lambda w, s, t: w.minimum(s, 2 * t),
        lambda w, s, t: w.where(w.relation("<", s, t), s, t),
        lambda w, s, t: t // s,
        symbols=(S, T),
        facts=DIVISIBLE,
    ),
    rule(
        "elimination",
        "prover._eliminate",
        lambda w, i, j, s, t: w.relation("<", i * t + j, s * t),
        lambda w, i, j, s, t: w.relation("<=", s - i - 1, s),
        lambda w, i, j, s, t: w.relation("<", (i * t + j) // t, s),
        lambda w, i, j, s, t: w.relation("<=", t * (j // t), j),
        lambda w, i, j, s, t: w.relation("<", j % t, t),
        lambda w, i, j, s, t: w.relation("<=", w.minimum(i, j + 3), s),
        lambda w, i, j, s, t: w.relation("<=", j, w.maximum(t, i)),
        lambda w, i, j, s, t: w.relation("<=", i * 2 - j, 2 * s),
        symbols=(I, J, S, T),
        facts=LOOPS,
    ),
    rule(
        "assumed inequalities",
        "prover._prove",
        lambda w, s, t: w.relation("<=", 2 * s + t, 30),
        lambda w, s, t: w.relation("<", 2 * s + t, 40),
        lambda w, s, t: w.relation("<=", 2 * s, 29),
        lambda w, s, t: w.relation("<=", s * t, 3),
        symbols=(S, T),
        facts=SIZES.with_cond(le(2 * S + T, 30)).with_cond(ge(S * T, 4)),
    ),
    rule(
        "ends of quotients",
        "prover._quotient_ends",
        lambda w, i, j, t: w.relation("<=", t * (j // t), 2 * t),
        lambda w, i, j, t: w.relation("<", 3 * t * (j // (3 * t)), 4 * t + i),
        lambda w, i, j, t: w.relation("<=", i * t - t * ((i + 3) // t) + 2 * t, i * t + i + 2 * t),
        lambda w, i, j, t: w.relation("<", (i * t - j) // t, i + 1),
        lambda w, i, j, t: w.relation("<", (2 * i - j) // t, 2 * i + 1),
        symbols=(I, J, T),
        facts=LOOPS,
    ),
    rule(
        "signs that are not known",
        "prover._eliminate",
        lambda w, x, i, s: w.relation("<=", x * i, s),
        lambda w, x, i, s: w.relation("<", i // x, s),
        lambda w, x, i, s: w.relation("<=", i * i, s * s),
        lambda w, x, i, s: w.relation("<", (x * i) // s, s),
        symbols=(X, I, S),
        facts=LOOPS,
    ),
    rule(
        "zero times anything",
        "prover._times",
        lambda w, x, y: w.relation("==", x * y, 0),
        lambda w, x, y: w.relation("==", x * y * y, 1),
        facts=NONE.with_range(X, 0, 0),
    ),
    rule(
        "equal and unequal",
        "prover._equal",
        lambda w, x, y, c: w.relation("==", x % 6 + 6 * (x // 6) + c, x),
        lambda w, x, y, c: w.relation("!=", 4 * x + 2 * y, c),
        lambda w, x, y, c: w.relation("==", (x % 6) * y, c),
        lambda w, x, y, c: w.relation("==", (x % 4) * y + 4 * y * (x // 4), x * y + c),
        lambda w, x, y, c: w.all_of([w.relation("<", 0, x * x + 1), w.relation("!=", 2 * x, c)]),
        lambda w, x, y, c: w.any_of([w.relation("<", x * x, 0), w.relation("!=", 2 * x, c)]),
        over=((-1, 0, 1),),
    ),
)
RULES = (*BUILD, *DIVISION, *RECOMBINE, *CONDITIONS, *SIMPLIFY, *PROVER)


LAWS = {
    "multiples leave a quotient": lambda z, x, y, c, d: (c * y + x) // c - (y + x // c),
    "multiples leave a remainder": lambda z, x, y, c, d: (c * y + x) % c - x % c,
    "factors cancel in a quotient": lambda z, x, y, c, d: (d * x) // (d * c) - x // c,
    "factors cancel in a remainder": lambda z, x, y, c, d: (d * x) % (d * c) - d * (x % c),
    "the constant below a factor leaves": lambda z, x, y, c, d: (d * x + y % d) // (d * c) - x // c,
    "the constant below a factor stays": lambda z, x, y, c, d: (
        (d * x + y % d) % (d * c) - (d * (x % c) + y % d)
    ),
    "the first sign of a quotient": lambda z, x, y, c, d: x // c + (c - 1 - x) // c,
    "the first sign of a remainder": lambda z, x, y, c, d: x % c + (c - 1 - x) % c - (c - 1),
    "a negative divisor of a quotient": lambda z, x, y, c, d: x // (-c) - (-x) // c,
    "a negative divisor of a remainder": lambda z, x, y, c, d: x % (-c) + (-x) % c,
    "quotient of a quotient": lambda z, x, y, c, d: (x // d + y) // c - (x + d * y) // (d * c),
    "quotient of a remainder": lambda z, x, y, c, d: (x % (c * d)) // c - (x // c) % d,
    "remainder of a remainder": lambda z, x, y, c, d: (x % (c * d) + y) % c - (x + y) % c,
    "join and rest": lambda z, x, y, c, d: x % c + c * (x // c) - x,
    "nest": lambda z, x, y, c, d: x % c + c * ((x // c) % d) - x % (c * d),
}
"""The identities that the rules of division rest on, each 0 for all x, y and all c, d > 0."""
