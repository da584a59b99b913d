"""`parse(show(p)) == p`, for drawn programs and for what is hard to write down."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyrator_ir.body.nodes import Axis, Const, Store
from gyrator_ir.expr import ShapeFacts, Sym, expr
from gyrator_ir.host.forms import FORMS
from gyrator_ir.host.nodes import INSTRUCTIONS, HostProgram, ListValue, Return
from gyrator_ir.levels import level_of
from gyrator_ir.loop.forms import CALLS
from gyrator_ir.loop.nodes import (
    Buffer,
    CallOperation,
    Extern,
    Literal,
    LoopProgram,
    OpaqueInput,
    Pointwise,
    Template,
    TypeArg,
    UserKernel,
)
from gyrator_ir.provenance import Origin
from gyrator_ir.types import Device, DType
from gyrator_testing.strategies import ALL_OPS, host_programs, loop_programs, schedules

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def again(program):
    level = level_of(program)
    text = level.show(program)
    read = level.parse(text)
    assert level.show(read) == text
    return read


@SLOW
@given(loop_programs(ops=ALL_OPS))
def test_loop_programs(p):
    assert again(p) == p


@SLOW
@given(schedules(ops=ALL_OPS))
def test_schedules(s):
    assert again(s) == s


@SLOW
@given(host_programs(ops=ALL_OPS))
def test_host_programs(p):
    assert again(p) == p


def floats():
    return st.integers(0, 2**64 - 1).map(lambda n: struct.unpack("<d", struct.pack("<Q", n))[0])


@given(st.one_of(floats(), st.floats(), st.integers(-(2**63), 2**64), st.booleans()))
def test_constants_keep_their_bits(value):
    y = Buffer("y", DType.F64, Device("cpu"), (), ())
    body = (Const("a", value, DType.F64), Store("y", expr(0), "a"))
    p = LoopProgram("main", (), (), (y,), (Pointwise("op0", (), body),), (Literal(value),))
    assert again(p) == p
    (read,) = again(p).outputs
    assert type(read.value) is type(value)
    if isinstance(value, float):
        assert struct.pack("<d", read.value) == struct.pack("<d", value)


@given(st.text(), st.text(), st.complex_numbers())
def test_strings_and_complex_numbers(a, b, c):
    args = (Literal(a), TypeArg("kind", b), Literal(c), ListValue((Literal(b),)))
    p = HostProgram("main", (), (), (), (Return(args),), origins=(Origin(a, b, b, a, a),))
    assert again(p) == p
    kernels = (UserKernel(a, b, (a, b), (("k", 3),)),)
    q = LoopProgram("main", (), (), (), (), (), user_kernels=kernels)
    assert again(q) == q


def test_source_with_every_kind_of_line_end():
    source = 'a\r\nb\rc\x0bd\x0ce\x1cf\x85g\u2028h\n\n  ; no comment\n| bar\n"quote"\n\ttab\n '
    p = LoopProgram("main", (), (), (), (), (), user_kernels=(UserKernel("k", source, ()),))
    assert again(p) == p


@pytest.mark.parametrize("name", ["none", "true", "false", "inf", "nan", "complex", "in", "store"])
def test_tensors_with_names_of_other_things(name):
    b = Buffer(name, DType.F32, Device("cpu"), (expr(2),), (expr(1),))
    ref = Extern("op0", "aten.f", (), (), (name, (name,), None, Sym("u0")))
    p = LoopProgram("main", (), (), (b,), (ref,), ())
    assert again(p) == p
    from gyrator_ir.loop.nodes import TensorRef

    whole = TensorRef(name, b.dtype, b.shape, b.strides, expr(0))
    p = LoopProgram("main", (), (), (b,), (), (whole, Literal(None)))
    assert again(p) == p
    index = Sym("i0")
    body = (Const(name, 0.5, DType.F32), Store(name, index, name, mask=name))
    p = LoopProgram("main", (), (), (b,), (Pointwise(name, (Axis(index, expr(2)),), body),), ())
    assert again(p) == p


def test_facts():
    s0, s1, s2 = (Sym(f"s{k}") for k in range(3))
    facts = ShapeFacts().with_range(s0, 2, 64).with_range(s1, None, s0 * 2).with_divisible(s0, 8)
    facts = facts.with_equal(s2, s0 + 1).with_hint(s0, 16).with_cond((s0 + s1).le(100))
    p = LoopProgram("main", (OpaqueInput("g"),), (), (), (), (), facts=facts)
    assert again(p) == p
    assert again(p).facts == facts


def test_every_call_and_instruction_has_a_form():
    assert set(FORMS.by_class) == set(INSTRUCTIONS)
    assert set(CALLS.by_class) | {Template} == set(CallOperation.__args__)


def test_every_field_is_in_its_form():
    import attrs

    for form in (*FORMS.forms, *CALLS.forms):
        parts = {p.attribute for p in (*form.parts, *([form.target] if form.target else []))}
        parts |= {b.attribute for b in form.blocks}
        assert parts == {f.name for f in attrs.fields(form.cls)}, form.cls


def test_no_op_is_called_like_a_word_of_the_text_form():
    from gyrator_ir.body.ops import OPS

    assert not {"load", "bind", "const", "index", "reduce", "scan", "sort", "store"} & set(OPS)
