"""What the verifiers refuse and no text can say."""

import pytest

from gyrator_ir.body.nodes import Axis, Let, Load, Store
from gyrator_ir.diagnostics import VerifyError
from gyrator_ir.expr import Sym, expr
from gyrator_ir.host.nodes import HostProgram, Parameter, Return
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.kernel.nodes import Schedule
from gyrator_ir.kernel.verify import verify as verify_schedule
from gyrator_ir.loop.nodes import Buffer, LoopProgram, Pointwise, TensorInput, TensorRef
from gyrator_ir.loop.verify import verify
from gyrator_ir.types import Device, DType

CPU = Device("cpu")
I0 = Sym("i0")
X = Buffer("x", DType.F32, CPU, (expr(8),), (expr(1),))
Y = Buffer("y", DType.F32, CPU, (expr(8),), (expr(1),))
AXES = (Axis(I0, expr(8)),)


def program(*body, **fields):
    op = Pointwise("op0", AXES, body)
    values = {
        "inputs": (TensorInput(X),),
        "constants": (),
        "buffers": (Y,),
        "operations": (op,),
        "outputs": (TensorRef("y", DType.F32, Y.shape, Y.strides, expr(0)),),
    }
    return LoopProgram("main", **(values | fields))


GOOD = (Load("a", "x", I0), Store("y", I0, "a"))


def code(verify, value):
    with pytest.raises(VerifyError) as caught:
        verify(value)
    return caught.value.diagnostic.code


def test_a_good_program_comes_back_unchanged():
    good = program(*GOOD)
    assert verify(good) is good


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (program(Load("a b", "x", I0), Store("y", I0, "a b")), "GY-LOOP-001"),
        (program("a statement"), "GY-LOOP-005"),
        (program(Load("a", "x", I0), Let("b", "neg", ("c",), DType.F32)), "GY-LOOP-003"),
        (program(*GOOD, operations=("op",)), "GY-LOOP-018"),
        (program(*GOOD, outputs=("y",)), "GY-LOOP-018"),
        (program(*GOOD, inputs=("x",)), "GY-LOOP-018"),
        (program(*GOOD, constants=("x",)), "GY-LOOP-018"),
        (program(*GOOD, buffers=("y",)), "GY-LOOP-018"),
    ],
)
def test_loop(bad, expected):
    assert code(verify, bad) == expected


def test_kernel():
    assert code(verify_schedule, Schedule("main", ("x",), (), (), (), ())) == "GY-KERNEL-018"


def test_host():
    bad = HostProgram("main", (Parameter("x", "tensor"),), (), (), ("free", Return(())))
    assert code(verify_host, bad) == "GY-HOST-016"
    spaced = HostProgram("main", ("x",), (), (), (Return(()),))
    assert code(verify_host, spaced) == "GY-HOST-016"


def test_provenance_runs_from_the_node_to_the_users_line():
    from gyrator_ir.provenance import Origin

    bad = program(
        *GOOD,
        operations=(Pointwise("op0", AXES, (Store("y", I0, "a"),), (0,)),),
        origins=(Origin("add", "aten.add.Tensor", "m.py:3 in f", "x + 1"),),
    )
    with pytest.raises(VerifyError) as caught:
        verify(bad)
    diagnostic = caught.value.diagnostic
    assert diagnostic.where == "store y[i0], a"
    assert diagnostic.provenance == ("%add = aten.add.Tensor", "m.py:3 in f: x + 1")
