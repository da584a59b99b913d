"""The op table and its dtype rules."""

import pytest

from gyrator_ir.body.ops import OPS, Domain, Typing, result_dtype
from gyrator_ir.types import DType

D = DType
WIDE = (D.F32, D.F64)
INTS = tuple(d for d in DType if d.is_int)
NARROW = tuple(d for d in DType if d.is_narrow_float)
COMPLEX = (D.C64, D.C128)
IN_DOMAIN = {
    Domain.FLOAT: WIDE,
    Domain.INT: INTS,
    Domain.BOOL: (D.BOOL,),
    Domain.NUMBER: WIDE + INTS,
    Domain.BITS: (*INTS, D.BOOL),
    Domain.ANY: (*WIDE, *INTS, D.BOOL),
}


def rows(*typings):
    return [name for name, row in OPS.items() if row.typing in typings]


def test_names_are_keys():
    assert all(name == row.name for name, row in OPS.items())
    assert all(row.meaning and row.cost > 0 for row in OPS.values())


@pytest.mark.parametrize("op", rows(Typing.SAME))
def test_same(op):
    row = OPS[op]
    for d in DType:
        wrong = result_dtype(op, (d,) * row.arity, d)
        assert (wrong is None) == (d in IN_DOMAIN[row.domain]), (d, wrong)
    good = IN_DOMAIN[row.domain][0]
    other = D.I8 if good is not D.I8 else D.I16
    assert result_dtype(op, (good,) * row.arity, other)
    assert result_dtype(op, (good,) * (row.arity + 1), good)
    if row.arity > 1:
        assert result_dtype(op, (good,) * (row.arity - 1) + (other,), good)


@pytest.mark.parametrize("op", rows(Typing.COMPARE))
def test_compare(op):
    for d in DType:
        wrong = result_dtype(op, (d, d), D.BOOL)
        assert (wrong is None) == (d in IN_DOMAIN[Domain.ANY]), (d, wrong)
    assert result_dtype(op, (D.F32, D.F64), D.BOOL)
    assert result_dtype(op, (D.F32, D.F32), D.F32)


@pytest.mark.parametrize("op", rows(Typing.PREDICATE))
def test_predicate(op):
    for d in DType:
        assert (result_dtype(op, (d,), D.BOOL) is None) == (d in WIDE)
    assert result_dtype(op, (D.F32,), D.F32)


def test_select_moves_narrow_floats():
    for d in (*WIDE, *INTS, *NARROW, D.BOOL):
        assert result_dtype("where", (D.BOOL, d, d), d) is None
    for d in COMPLEX:
        assert result_dtype("where", (D.BOOL, d, d), d)
    assert result_dtype("where", (D.F32, D.F32, D.F32), D.F32)
    assert result_dtype("where", (D.BOOL, D.F32, D.F64), D.F32)


def test_cast_goes_everywhere_but_to_complex():
    for a in (*WIDE, *INTS, *NARROW, D.BOOL):
        for b in DType:
            assert (result_dtype("cast", (a,), b) is None) == (b not in COMPLEX)


def test_bitcast_keeps_the_size():
    for a in (*WIDE, *INTS, *NARROW):
        for b in (*WIDE, *INTS, *NARROW):
            assert (result_dtype("bitcast", (a,), b) is None) == (a.size == b.size)


def test_random():
    assert result_dtype("rand", (D.I64, D.I64), D.F32) is None
    assert result_dtype("randn", (D.I64, D.I64), D.F32) is None
    assert result_dtype("randint", (D.I64,) * 4, D.I64) is None
    assert result_dtype("rand", (D.I32, D.I64), D.F32)
    assert result_dtype("rand", (D.I64, D.I64), D.F64)
    assert result_dtype("randint", (D.I64,) * 4, D.I32)


def test_exponent():
    assert result_dtype("ldexp", (D.F64, D.I32), D.F64) is None
    assert result_dtype("ldexp", (D.F64, D.I64), D.F64)
    assert result_dtype("ldexp", (D.I32, D.I32), D.I32)


def test_the_message_names_the_expected_types():
    assert result_dtype("add", (D.F32, D.F64), D.F32) == (
        "'add' takes operands (f32, f32), got (f32, f64)"
    )
    assert result_dtype("lt", (D.F32, D.F32), D.F32) == "'lt' returns bool, not f32"
    assert result_dtype("sqrt", (D.I32,), D.I32) == "'sqrt' computes on float types, not i32"
