"""The border to sympy."""

import math

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Sym, evaluate, parse_cond, parse_expr
from gyrator_ir.expr.sympy_bridge import cond_from_sympy, from_sympy, to_sympy

x, y = sympy.symbols("s0 s1", integer=True)
positive = sympy.Symbol("s0", integer=True, positive=True)


def function(name):
    """An uninterpreted sympy function class of that name, as torch's are recognised."""
    return sympy.Function(name)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (sympy.Integer(3), "3"),
        (4, "4"),
        (2 * x + y**2 - 1, "s1**2 + 2*s0 - 1"),
        (function("FloorDiv")(x, 4), "s0 // 4"),
        (function("ModularIndexing")(x, 4, y), "(s0 // 4) % s1"),
        (function("PythonMod")(x, 4), "s0 % 4"),
        (function("CleanDiv")(x, 4), "s0 // 4"),
        (function("CeilDiv")(x, 4), "(s0 + 3) // 4"),
        (function("Max")(x, y), "max(s0, s1)"),
        (function("Min")(x, y, 3), "min(s0, s1, 3)"),
        (function("PowByNatural")(x, 2), "s0**2"),
        (function("Identity")(x + 1), "s0 + 1"),
        (function("FloorToInt")(function("IntTrueDiv")(x, 4)), "s0 // 4"),
        (function("CeilToInt")(function("IntTrueDiv")(x, 4)), "(s0 + 3) // 4"),
        (function("TruncToInt")(function("IntTrueDiv")(positive, 4)), "s0 // 4"),
        (function("TruncToInt")(0.5 * function("ToFloat")(positive)), "s0 // 2"),
        (function("FloorToInt")(1.5 * function("ToFloat")(x)), "3*s0 // 2"),
        (function("CeilToInt")(0.25 * function("ToFloat")(x)), "(s0 + 3) // 4"),
        (function("TruncToInt")(0.6 * function("ToFloat")(positive)), "3*s0 // 5"),
        (function("CeilToInt")(0.3 * function("ToFloat")(positive)), "(3*s0 + 9) // 10"),
        (function("LShift")(x, 3), "8*s0"),
        (function("RShift")(x, 3), "s0 // 8"),
        (sympy.Mod(x, 4), "s0 % 4"),
        (sympy.floor(x / 4), "s0 // 4"),
        (sympy.floor((x + y) / (2 * y)), "(s0 + s1) // (2*s1)"),
        (sympy.ceiling(x / 4), "(s0 + 3) // 4"),
        (sympy.Abs(x), "abs(s0)"),
        (sympy.Max(x, 2), "max(s0, 2)"),
        (sympy.Piecewise((x, x < y), (3, True)), "where(s0 < s1, s0, 3)"),
        (x / 2 + y / 2, "(s0 + s1) // 2"),
    ],
)
def test_values_come_in(value, text):
    assert from_sympy(value) is parse_expr(text)


@given(
    st.fractions(0, 8, max_denominator=60).map(float),
    st.one_of(st.integers(0, 10_000), st.integers(0, 1 << 34)),
)
def test_rounded_products_are_those_of_doubles(factor, size):
    for name, rounded in (("FloorToInt", math.floor), ("CeilToInt", math.ceil)):
        try:
            result = from_sympy(function(name)(sympy.Float(factor) * function("ToFloat")(positive)))
        except UnsupportedError:
            continue
        for n in (size, size - size % 60):
            assert evaluate(result, {Sym("s0"): n}) == rounded(factor * n)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (x < y, "s0 < s1"),
        (x >= y, "s1 <= s0"),
        (sympy.Eq(x, 3), "s0 == 3"),
        (sympy.Ne(x, 3), "s0 != 3"),
        (sympy.And(x < y, sympy.Eq(x, 3)), "s0 < s1 and s0 == 3"),
        (sympy.Or(x < y, sympy.Not(sympy.Eq(x, 3))), "s0 < s1 or s0 != 3"),
        (sympy.true, "true"),
        (False, "false"),
    ],
)
def test_conditions_come_in(value, text):
    assert cond_from_sympy(value) is parse_cond(text)


@pytest.mark.parametrize(
    "value",
    [
        sympy.Float(1.5) * x,
        function("IntTrueDiv")(x, y),
        function("ToFloat")(x),
        function("FloorToInt")(x),
        function("TruncToInt")(0.5 * function("ToFloat")(x)),
        function("FloorToInt")(0.1 * function("ToFloat")(x)),
        function("TruncToInt")(0.7 * function("ToFloat")(positive)),  # 0.7 * 90 is below 63
        function("TruncToInt")(math.pi * function("ToFloat")(positive)),
        function("FloorToInt")(0.5 * function("ToFloat")(x) * function("ToFloat")(y)),
        function("LShift")(x, y),
        1 / x,
        x**y,
        sympy.sqrt(x),
        sympy.pi,
    ],
)
def test_what_is_not_integer_arithmetic_is_refused(value):
    with pytest.raises(UnsupportedError) as caught:
        from_sympy(value)

    assert caught.value.diagnostic.code == "GY-EXPR-006"


def test_unsupported_conditions_are_refused():
    with pytest.raises(UnsupportedError) as caught:
        cond_from_sympy(sympy.Xor(x < y, sympy.Eq(x, 3)))

    assert caught.value.diagnostic.code == "GY-EXPR-006"


def test_values_go_out():
    value = parse_expr("where(s0 < s1, 4*s0**2 + s1 // 3, min(s0 % 5, 2))")
    exported = to_sympy(value)

    assert exported.subs({x: 3, y: 7}) == 4 * 9 + 2
    assert exported.subs({x: 9, y: 7}) == 2
    assert to_sympy(parse_expr("s0 + 1"), {Sym("s0"): positive}) == positive + 1
