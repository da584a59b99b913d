"""Random expressions, each built twice: as a node, and as a plain Python function of the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from gyrator_ir.expr import (
    Cond,
    Expr,
    ExprError,
    Sym,
    absolute,
    all_of,
    any_of,
    ceildiv,
    expr,
    maximum,
    minimum,
    negate,
    relation,
    where,
)

SYMBOLS = tuple(Sym(name) for name in ("s0", "s1", "u0", "i0", "i1", "r0", "t0"))


class Undefined(Exception):
    """The value divides by zero."""


class Tree(NamedTuple):
    """A node and what it must evaluate to."""

    node: Expr
    value: Callable[[dict[Sym, int]], int]


class CondTree(NamedTuple):
    node: Cond
    value: Callable[[dict[Sym, int]], bool]


def _nonzero(value):
    if value == 0:
        raise Undefined
    return value


OPERATIONS = {
    "+": (lambda a, b: a + b, lambda x, y: x + y),
    "-": (lambda a, b: a - b, lambda x, y: x - y),
    "*": (lambda a, b: a * b, lambda x, y: x * y),
    "//": (lambda a, b: a // b, lambda x, y: x // _nonzero(y)),
    "%": (lambda a, b: a % b, lambda x, y: x % _nonzero(y)),
    "ceildiv": (ceildiv, lambda x, y: -(-x // _nonzero(y))),
    "min": (minimum, min),
    "max": (maximum, max),
    "abs": (lambda a, b: absolute(a) + b, lambda x, y: abs(x) + y),
}

RELATIONS = {
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
}


def constant(value):
    return Tree(expr(value), lambda _: value)


def symbol(sym):
    return Tree(sym, lambda env: env[sym])


def binary(op, a, b):
    build, compute = OPERATIONS[op]
    try:
        node = build(a.node, b.node)
    except ExprError as error:
        if error.diagnostic.code != "GY-EXPR-002":
            raise
        return a
    return Tree(node, lambda env: compute(a.value(env), b.value(env)))


def compare(op, a, b):
    compute = RELATIONS[op]
    return CondTree(relation(op, a.node, b.node), lambda env: compute(a.value(env), b.value(env)))


def select(cond, a, b):
    return Tree(
        where(cond.node, a.node, b.node),
        lambda env: a.value(env) if cond.value(env) else b.value(env),
    )


def combine(word, conds):
    if word == "not":
        return CondTree(negate(conds[0].node), lambda env: not conds[0].value(env))
    join, compute = (all_of, all) if word == "and" else (any_of, any)
    return CondTree(join(c.node for c in conds), lambda env: compute([c.value(env) for c in conds]))


small = st.integers(-12, 12)
divisors = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 64, -1, -2, -3, -4])
leaves = st.one_of(small.map(constant), st.sampled_from(SYMBOLS).map(symbol))


def conditions(trees):
    simple = st.builds(compare, st.sampled_from(sorted(RELATIONS)), trees, trees)
    return st.one_of(
        simple,
        st.builds(
            combine,
            st.sampled_from(["and", "or", "not"]),
            st.lists(simple, min_size=1, max_size=3),
        ),
    )


def _grow(trees):
    return st.one_of(
        st.builds(binary, st.sampled_from(sorted(OPERATIONS)), trees, trees),
        st.builds(binary, st.sampled_from(["+", "-", "*"]), trees, trees),
        st.builds(binary, st.sampled_from(["//", "%"]), trees, divisors.map(constant)),
        st.builds(select, conditions(trees), trees, trees),
    )


def _grow_arithmetic(trees):
    return st.one_of(
        st.builds(binary, st.sampled_from(["+", "-", "*"]), trees, trees),
        st.builds(binary, st.sampled_from(["//", "%"]), trees, divisors.map(constant)),
        st.builds(binary, st.sampled_from(["//", "%"]), trees, trees),
    )


trees = st.recursive(leaves, _grow, max_leaves=12)
arithmetic = st.recursive(leaves, _grow_arithmetic, max_leaves=10)
cond_trees = conditions(trees)
environments = st.fixed_dictionaries(
    {sym: st.one_of(st.integers(-9, 9), st.integers(-200, 200)) for sym in SYMBOLS}
)
