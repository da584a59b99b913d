"""Reading text: what is accepted, and the error for what is not."""

import pytest

from gyrator_ir.diagnostics import ParseError
from gyrator_ir.expr import ExprError, ShapeFacts, Sym, parse_cond, parse_expr, parse_facts, to_text


@pytest.mark.parametrize(
    "text",
    [
        "128*i0 + i1",
        "(i0 // 4) % s0",
        "min(i0, i1)",
        "where(i0 < s0, i1, -1)",
        "-i0",
        "-3*i0**2 + s0",
        "s0*(i0 // 4)",
        "i0 // (s0*s1)",
        "-((i0 + 3) // 4) - 1",
        "0",
        "-5",
    ],
)
def test_canonical_text_is_kept(text):
    assert to_text(parse_expr(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "i0 +", "x0", "foo(i0)", "1.5", "True", "i0 / 2", "i0 < s0", "min()", "where(i0, 1, 2)",
     "i0 ** s0", "i0 ** -1", "'a'", "i0 if i0 else 1", "__import__('os')", "min(i0, key=i1)",
     "abs(i0, i1)", "i0; i1", "(" * 3000],
)  # fmt: skip
def test_what_is_not_an_expression_is_refused(text):
    with pytest.raises(ParseError) as caught:
        parse_expr(text)

    assert caught.value.diagnostic.code == "GY-EXPR-004"
    assert caught.value.diagnostic.where == text


@pytest.mark.parametrize("text", ["i0", "i0 in s0", "i0 is s0", "1", "i0 <", "not i0"])
def test_what_is_not_a_condition_is_refused(text):
    with pytest.raises(ParseError) as caught:
        parse_cond(text)

    assert caught.value.diagnostic.code == "GY-EXPR-004"


def test_text_that_divides_by_zero_is_refused():
    with pytest.raises(ExprError) as caught:
        parse_expr("i0 // 0")

    assert caught.value.diagnostic.code == "GY-EXPR-002"


def test_a_long_sum_is_read():
    text = " + ".join(f"{n + 2}*i{n}" for n in range(800))

    assert to_text(parse_expr(text)) == text


def test_facts_text():
    text = "s0 in [2, 4096]; s1 in [*, s0]; s0 multiple 8; s2 = 2*s0; s0 ~ 128; assume u0 + u1 < s0"

    assert parse_facts(text).hint(Sym("s2")) == 256
    assert parse_facts("") == ShapeFacts()
    with pytest.raises(ParseError) as caught:
        parse_facts("s0 is large")
    assert caught.value.diagnostic.code == "GY-EXPR-004"
