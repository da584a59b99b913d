"""Construction, substitution, text and compilation keep the value."""

import re

import pytest
import sympy
from expr_strategies import SYMBOLS, Undefined, arithmetic, cond_trees, environments, small, trees
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gyrator_ir.expr import (
    CPrinter,
    ExprError,
    compile_python,
    evaluate,
    holds,
    linear,
    mod,
    parse_cond,
    parse_expr,
    rebuild,
    stride_of,
    subs,
    to_python,
    to_text,
)
from gyrator_ir.expr.sympy_bridge import cond_from_sympy, from_sympy, to_sympy

many = settings(max_examples=120, deadline=None)
some = settings(max_examples=50, deadline=None)


def expected_value(tree, env):
    """What plain Python says; hypothesis discards cases that divide by zero."""
    try:
        return tree.value(env)
    except Undefined:
        assume(False)


@many
@given(trees, environments)
def test_construction_keeps_the_value(tree, env):
    assert expected_value(tree, env) == evaluate(tree.node, env)


@many
@given(arithmetic, environments)
def test_divisions_keep_the_value(tree, env):
    assert expected_value(tree, env) == evaluate(tree.node, env)


@many
@given(cond_trees, environments)
def test_conditions_keep_the_truth(tree, env):
    assert expected_value(tree, env) == holds(tree.node, env)


@many
@given(trees)
def test_text_round_trip_is_identity(tree):
    assert tree.node is parse_expr(to_text(tree.node))


@some
@given(cond_trees)
def test_condition_text_round_trip_is_identity(tree):
    assert tree.node is parse_cond(to_text(tree.node))


@many
@given(trees)
def test_normal_form_is_a_fixed_point(tree):
    assert tree.node is rebuild(tree.node, lambda child: child)


@many
@given(trees, environments)
def test_python_text_and_compiled_function_agree(tree, env):
    expected = expected_value(tree, env)
    function = compile_python([tree.node, tree.node], SYMBOLS)
    values = [env[sym] for sym in SYMBOLS]

    assert (expected, expected) == function(*values)
    assert expected == eval(
        to_python(tree.node),
        {"__builtins__": {"min": min, "max": max}},
        {sym.name: value for sym, value in env.items()},
    )


@many
@given(arithmetic, arithmetic, st.integers(2, 3), environments)
def test_text_for_c_keeps_the_value(one, other, power, env):
    def truncates_alike(node):
        return evaluate(node.a, env) >= 0 and evaluate(node.b, env) > 0

    try:
        node = one.node // other.node**power + one.node % other.node**power
        value = evaluate(node, env)
    except (Undefined, ExprError, ZeroDivisionError):
        assume(False)
    names = {sym.name: number for sym, number in env.items()}
    names |= {"floor_div": lambda a, b: a // b, "floor_mod": lambda a, b: a % b}
    for printer in (CPrinter(truncates_alike), CPrinter()):
        assert eval(printer(node).replace(" / ", " // "), names) == value


@many
@given(
    trees,
    environments,
    st.dictionaries(st.sampled_from(SYMBOLS), arithmetic, max_size=3),
)
def test_substitution_commutes_with_evaluation(tree, env, replacements):
    inner = {sym: expected_value(new, env) for sym, new in replacements.items()}
    try:
        replaced = subs(tree.node, {sym: new.node for sym, new in replacements.items()})
    except ExprError as error:
        if error.diagnostic.code != "GY-EXPR-002":
            raise
        return

    assert expected_value(tree, {**env, **inner}) == evaluate(replaced, env)


@many
@given(arithmetic)
def test_linear_parts_add_up(tree):
    sym = SYMBOLS[3]
    split = linear(tree.node, (sym,))
    stride = stride_of(tree.node, sym)
    assume(split is not None)
    coefficients, rest = split

    assert coefficients[sym] is stride
    assert not {sym} & (stride.free_symbols | rest.free_symbols)
    assert tree.node is coefficients[sym] * sym + rest


@some
@given(arithmetic, environments)
def test_sympy_gives_the_same_value(tree, env):
    expected = expected_value(tree, env)
    symbols = {sym: sympy.Symbol(sym.name, integer=True) for sym in SYMBOLS}
    exported = to_sympy(tree.node, symbols).replace(
        lambda e: type(e).__name__ == "_FloorDiv", lambda e: sympy.floor(e.args[0] / e.args[1])
    )

    assert expected == exported.subs({symbols[sym]: value for sym, value in env.items()})


@some
@given(trees, environments)
def test_sympy_round_trip_keeps_the_value(tree, env):
    expected = expected_value(tree, env)

    assert expected == evaluate(from_sympy(to_sympy(tree.node)), env)


@some
@given(cond_trees, environments)
def test_sympy_round_trip_keeps_the_truth(tree, env):
    expected = expected_value(tree, env)

    assert expected == holds(cond_from_sympy(to_sympy(tree.node)), env)


@many
@given(
    st.lists(
        st.tuples(st.integers(-4, 4), st.lists(st.sampled_from(SYMBOLS), max_size=3)),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_a_polynomial_is_one_object_whatever_the_order(monomials, random):
    def build(parts):
        total = parse_expr("0")
        for coefficient, factors in parts:
            product = parse_expr("1")
            factors = list(factors)
            random.shuffle(factors)
            for sym in factors:
                product = product * sym
            total = total + coefficient * product
        return total

    expected = build(monomials)
    shuffled = list(monomials)
    random.shuffle(shuffled)

    assert expected is build(shuffled)
    assert expected - build(shuffled) is parse_expr("0")


@pytest.mark.parametrize("divisor", ["2147483647", "s1"])
def test_remainders_of_remainders_stay_within_64_bits(divisor):
    """Kernels compute in 64 bits: coefficients must not multiply from one to the next."""
    value, divisor, chain = 12345, parse_expr(divisor), parse_expr("s0")
    env = dict(zip(SYMBOLS, (value, 2147483647), strict=False))
    for _ in range(8):
        chain, value = mod(chain * 48271, divisor), value * 48271 % 2147483647
        assert evaluate(chain, env) == value
        assert all(int(n) < 1 << 32 for n in re.findall("[0-9]+", to_text(chain)))
    assert mod(mod(parse_expr("3*i0"), parse_expr("64")) * 4, parse_expr("16")) is parse_expr(
        "4*((3*i0) % 4)"
    )


@some
@given(trees, trees, trees, small)
def test_ring_laws_hold_for_objects_without_divisions(a, b, c, k):
    a, b, c = a.node, b.node, c.node
    assume(not any(mark in to_text(x) for x in (a, b, c) for mark in ("//", "%")))

    assert a + b is b + a
    assert (a + b) + c is a + (b + c)
    assert a * b is b * a
    assert (a * b) * c is a * (b * c)
    assert a * (b + c) is a * b + a * c
    assert k * (a - b) is k * a - k * b
