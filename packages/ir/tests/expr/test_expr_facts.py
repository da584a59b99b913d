"""Whatever is claimed under facts holds for all values that satisfy them."""

import math

from expr_strategies import SYMBOLS, Undefined, cond_trees, trees
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gyrator_ir.expr import (
    FloorDiv,
    Mod,
    ShapeFacts,
    evaluate,
    facts_to_text,
    holds,
    iter_nodes,
    parse_facts,
    to_text,
)

s0, s1, u0, i0, i1, r0, t0 = SYMBOLS
many = settings(max_examples=120, deadline=None)


@st.composite
def worlds(draw):
    """Facts, and values that satisfy them (extents are drawn first, then indices below them)."""
    facts = ShapeFacts()
    env = {}
    for sym in (s0, s1):
        by = draw(st.sampled_from([1, 1, 2, 4, 8]))
        value = by * draw(st.integers(1, 6))
        env[sym] = value
        facts = facts.with_divisible(sym, by)
        if draw(st.booleans()):
            hi = draw(st.one_of(st.none(), st.integers(value, 64)))
            facts = facts.with_range(sym, draw(st.integers(-3, value)), hi)
    extents = [s0, s1, s0 * s1, s0 + 1, (s0 + 3) // 4, 4 * s1, s0 // 2 + 1]
    extents += [draw(st.integers(1, 12)) for _ in range(4)]
    chosen = {}
    for sym in (i0, i1, r0):
        extent = draw(st.sampled_from(extents))
        size = extent if isinstance(extent, int) else evaluate(extent, env)
        assume(size > 0)
        chosen[sym] = extent
        env[sym] = draw(st.integers(0, size - 1))
    facts = facts.with_ranges(chosen)
    env[u0] = draw(st.integers(-6, 6))
    env[t0] = draw(st.integers(-20, 20))
    kind = draw(st.sampled_from(["none", "equal", "less", "linear"]))
    if kind == "equal":
        env[u0] = env[s0]
        facts = facts.with_equal(u0, s0)
    elif kind == "less":
        assume(env[u0] <= env[s0])
        facts = facts.with_cond(u0.le(s0))
    elif kind == "linear":
        env[u0] = env[i0] + 2 * env[s0]
        facts = facts.with_equal(u0 - i0, 2 * s0)
    return facts, env


def value_of(tree, env):
    try:
        return tree.value(env)
    except Undefined:
        assume(False)


@st.composite
def index_trees(draw):
    """Index arithmetic as reshapes make it, which random trees seldom hit."""
    parts = [s0 * i0, s1 * i0, i0, i1, r0, s0 * s1 * i0, s1 * i1, 4 * i0, 8 * i1, 2 * r0, u0, s0]
    total = sum(draw(st.lists(st.sampled_from(parts), min_size=1, max_size=4)), start=s0 * 0)
    for _ in range(draw(st.integers(1, 3))):
        divisor = draw(st.sampled_from([s0, s1, s0 * s1, s0 + 1, s0 * 4, *map(one, (2, 3, 4, 8))]))
        total = draw(
            st.sampled_from(
                [total // divisor, total % divisor, total // divisor % s1, total + total % divisor]
            )
        )
    return total


def one(value):
    return s0 * 0 + value


@many
@given(st.one_of(trees.map(lambda t: t.node), index_trees()), worlds())
def test_simplify_and_bounds_keep_the_value(node, world):
    facts, env = world
    try:
        expected = evaluate(node, env)
    except ZeroDivisionError:
        assume(False)
    low, high = facts.bounds(node)

    assert expected == evaluate(facts.simplify(node), env), to_text(facts.simplify(node))
    assert (-math.inf if low is None else low) <= expected
    assert expected <= (math.inf if high is None else high)


@many
@given(cond_trees, worlds())
def test_known_is_sound(tree, world):
    facts, env = world
    expected = value_of(tree, env)

    if facts.known(tree.node):
        assert expected
    assert expected == holds(facts.simplify(tree.node), env)


@many
@given(index_trees(), index_trees(), worlds())
def test_comparisons_of_indices_are_sound(a, b, world):
    facts, env = world
    try:
        x, y = evaluate(a, env), evaluate(b, env)
    except ZeroDivisionError:
        assume(False)

    for cond, truth in ((a.lt(b), x < y), (a.le(b), x <= y), (a.eq(b), x == y), (a.ne(b), x != y)):
        if facts.known(cond):
            assert truth, to_text(cond)


@many
@given(index_trees(), worlds())
def test_truncating_division_is_offered_only_where_it_agrees(node, world):
    facts, env = world
    for part in iter_nodes(node):
        if isinstance(part, FloorDiv | Mod) and facts.nonnegative_division(part):
            assert evaluate(part.a, env) >= 0
            assert evaluate(part.b, env) > 0


@many
@given(worlds())
def test_facts_survive_text(world):
    facts, _ = world

    assert facts == parse_facts(facts_to_text(facts))
    assert hash(facts) == hash(parse_facts(facts_to_text(facts)))
