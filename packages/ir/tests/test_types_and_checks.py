"""Element types, devices, validators, diagnostics and the equality of constants."""

import math
import operator

import pytest
from attrs import field, frozen

from gyrator_ir.body.nodes import Const, Let, ReduceKind, identity_of
from gyrator_ir.checks import a_tuple, exactly, identifier, instance_of, natural, one_of
from gyrator_ir.diagnostics import Diagnostic, GyratorError, InputError
from gyrator_ir.loop.nodes import Literal
from gyrator_ir.types import Device, DType


def test_families_of_types_are_disjoint_and_complete():
    for d in DType:
        families = [d.is_float, d.is_complex, d.is_int, d is DType.BOOL]
        assert families.count(True) == 1, d
        assert not d.is_narrow_float or d.is_float
        assert d.size in (1, 2, 4, 8, 16)


def test_computing_types():
    assert DType.BF16.compute is DType.F32
    assert DType.F8E4M3.compute is DType.F32
    assert DType.F64.compute is DType.F64
    assert not DType.U8.is_signed
    assert DType.I8.is_signed


def test_devices_print_as_torch_spells_them():
    assert str(Device("cpu")) == "cpu"
    assert str(Device("cuda", 1)) == "cuda:1"
    with pytest.raises(TypeError, match=r"Device\.index must be int \| NoneType, got 'x'"):
        Device("cpu", "x")


@frozen
class Node:
    name: str = field(default="a", validator=identifier)
    count: int = field(default=0, validator=natural)
    exact: int = field(default=0, validator=exactly(int))
    any_int: int = field(default=0, validator=instance_of(int))
    items: tuple = field(default=(), validator=a_tuple)
    word: str = field(default="add", validator=one_of(("add", "sub")))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "a b"}, "Node.name must be an identifier, got 'a b'"),
        ({"name": 3}, "Node.name must be an identifier, got 3"),
        ({"count": -1}, "Node.count must be an int >= 0, got -1"),
        ({"count": True}, "Node.count must be an int >= 0, got True"),
        ({"exact": True}, "Node.exact must be int, got True"),
        ({"any_int": "x"}, "Node.any_int must be int, got 'x'"),
        ({"items": [1]}, "Node.items must be a tuple, got [1]"),
        ({"word": "ad"}, "Node.word must be a known name, got 'ad'; did you mean 'add'?"),
        ({"word": "xyz"}, "Node.word must be a known name, got 'xyz'; known: add, sub"),
    ],
)
def test_validators_say_what_was_wanted(values, message):
    with pytest.raises(TypeError) as caught:
        Node(**values)
    assert str(caught.value) == message


def test_validators_accept():
    assert Node(any_int=True, items=(1,), word="sub").any_int is True


def test_let_knows_the_ops():
    with pytest.raises(TypeError, match="did you mean 'exp2'"):
        Let("a", "exq2", ("b",), DType.F32)


@pytest.mark.parametrize(
    ("a", "b"),
    [(0.0, -0.0), (1, 1.0), (1, True), (0, False), (math.nan, 0.0)],
)
def test_constants_differ_by_type_and_bits(a, b):
    assert Const("c", a, DType.F32) != Const("c", b, DType.F32)
    assert Literal(a) != Literal(b)


def test_equal_constants():
    assert Literal(float("nan")) == Literal(float("nan"))
    assert hash(Literal(float("nan"))) == hash(Literal(float("nan")))
    assert Literal(complex(0.0, -0.0)) != Literal(complex(0.0, 0.0))
    assert Literal(None) == Literal(None)


def test_diagnostics_print_what_there_is():
    fields = "GY-X-001", "it is wrong", "a = b", ("%n = op", "m.py:3: x"), "mend it"
    whole = Diagnostic(*fields)
    assert InputError.of(*fields).diagnostic == whole
    assert whole.render() == (
        "GY-X-001: it is wrong\n  in:   a = b\n  from: %n = op\n  from: m.py:3: x\n  help: mend it"
    )
    error = GyratorError.of("GY-X-001", "it is wrong")
    assert str(error) == "GY-X-001: it is wrong"
    assert error.diagnostic.code == "GY-X-001"


def test_limits_and_wrapping_of_types():
    assert DType.I8.limits == (-128, 127) and DType.U16.limits == (0, 65535)
    assert DType.BOOL.limits == (False, True) and DType.BF16.limits == (-math.inf, math.inf)
    assert [DType.I8.wrap(v) for v in (127, 128, 255, 256, -129)] == [127, -128, -1, 0, 127]
    assert [DType.U8.wrap(v) for v in (255, 256, -1)] == [255, 0, 255]
    assert DType.I64.wrap(1 << 63) == -(1 << 63)


REDUCED = {
    ReduceKind.SUM: lambda a, b: a + b, ReduceKind.PROD: lambda a, b: a * b,
    ReduceKind.MIN: min, ReduceKind.MAX: max, ReduceKind.XOR: operator.xor,
    ReduceKind.ANY: operator.or_, ReduceKind.ALL: operator.and_,
}  # fmt: skip


VALUES = [
    (kind, dtype)
    for kind in REDUCED
    for dtype in (DType.F32, DType.I8, DType.U8, DType.BOOL)
    if dtype is DType.BOOL or kind not in (ReduceKind.ANY, ReduceKind.ALL)
    if not (kind is ReduceKind.XOR and dtype.is_float)
]


@pytest.mark.parametrize(("kind", "dtype"), VALUES)
def test_identity_of_a_reduction(kind, dtype):
    identity = identity_of(kind, dtype)
    assert type(identity) is (bool if dtype is DType.BOOL else float if dtype.is_float else int)
    for value in {*dtype.limits, type(identity)(1), type(identity)(0)}:
        assert REDUCED[kind](identity, value) == value
