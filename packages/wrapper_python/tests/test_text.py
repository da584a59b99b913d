"""The Python text of every instruction, and what running it does."""

import ast
from typing import Any
from unittest.mock import MagicMock

import pytest

from gyrator_ir.expr import Sym, expr, minimum, where
from gyrator_ir.host import nodes as h
from gyrator_ir.host.parse import parse
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_ir.modes import Failure
from gyrator_ir.types import Device, DType
from gyrator_wrapper_python.stage import PythonWrapper

S0, U0 = Sym("s0"), Sym("u0")
CPU = Device("cpu")
ONE = (expr(1),)
N = (S0,)


def ref(name: str) -> h.Ref:
    return h.Ref(name)


LINES: list[tuple[h.Instruction, str]] = [
    (h.BindSize(S0, "x", 1), "s0 = x.size(1)"),
    (h.BindSize(S0, "x", 0, stride=True), "s0 = x.stride(0)"),
    (h.BindParameter(S0, "n"), "s0 = n"),
    (h.DefineSymbol(Sym("s1"), 2 * S0 + 1), "s1 = 2*s0 + 1"),
    (h.BindConstant("w", "layer.w"), "w = rt.constant('layer.w')"),
    (
        h.Conform("x", DType.F32, CPU, N, ONE, what="aten.mm.default"),
        "x = rt.conform(x, (s0,), (1,), 'f32', 'cpu', 'all', 'x', 'aten.mm.default')",
    ),
    (h.Separate(("x",), ("y", "z")), "(x,) = rt.separate((x,), (y, z))"),
    (h.AssertNoNan("x", "k0"), "rt.assert_no_nan(x, 'k0')"),
    (h.AssertTrue(S0.lt(8), "too long"), "rt.assert_true(s0 < 8, 'too long', 'RuntimeError')"),
    (
        h.AssertTrue(S0.lt(8), "outside", Failure.INDEX),
        "rt.assert_true(s0 < 8, 'outside', 'IndexError')",
    ),
    (
        h.Allocate("b", DType.F32, CPU, N, ONE),
        "b = rt.allocate((s0,), (1,), 'f32', 'cpu')",
    ),
    (h.AllocatePool("m", expr(256), CPU), "m = rt.pool(256, 'cpu')"),
    (
        h.AllocateFromPool("b", "m", expr(64), DType.I64, N, ONE),
        "b = rt.from_pool(m, 64, (s0,), (1,), 'i64')",
    ),
    (h.Free("b"), "del b"),
    (
        h.View("v", "x", DType.F32, N, ONE, expr(3)),
        "v = rt.view(x, (s0,), (1,), 'f32', 3)",
    ),
    (h.Launch("k0", ("x", "b"), N), "rt.launch('k0', (x, b), (s0,))"),
    (
        h.ExternCall("aten.mm.default", (ref("x"), ref("y")), (), ("b",)),
        "b = rt.extern('aten.mm.default', (x, y), {})",
    ),
    (
        h.ExternCall("aten.mm.default", (ref("x"), ref("y")), (), ("b",), "aten.mm.out", ("out",)),
        "rt.extern('aten.mm.out', (x, y), {'out': b})",
    ),
    (
        h.ExternCall("a.b.c", (ref("x"),), (), (("b", "c"), None, U0)),
        "((b, c), _, u0) = rt.extern('a.b.c', (x,), {})",
    ),
    (
        h.ExternCall("a.b.c", (ref("x"),), (), (("b",),)),
        "(b,) = rt.extern('a.b.c', (x,), {})",
    ),
    (
        h.ExternCall(
            "a.b.c",
            (h.ListValue((ref("x"), S0)), Literal("add"), Literal(float("inf"))),
            (("dtype", TypeArg("dtype", "float32")), ("n", Literal(None))),
            (),
        ),
        "rt.extern('a.b.c', ([x, s0], 'add', float('inf')), "
        "{'dtype': rt.typed('float32'), 'n': None})",
    ),
    (
        h.TmaDescriptor("d", "x", N, ONE, expr(4), True),
        "d = rt.tma_descriptor(x, (s0,), (1,), 4, True)",
    ),
    (
        h.TritonLaunch("uk", ((S0,),), (("x", ref("x")),), (("B", Literal(8)),)),
        "rt.triton('uk', ((s0,),), {'x': x, 'B': 8})",
    ),
    (h.Copy("b", "x", True), "rt.copy(b, x, True)"),
    (h.ReadScalar(U0, "x"), "u0 = rt.read_scalar(x)"),
    (
        h.CollectiveStart(
            "_c10d_functional.all_reduce.default", (ref("x"), Literal("sum")), ("b",)
        ),
        "b = rt.extern('_c10d_functional.all_reduce.default', (x, 'sum'), {})",
    ),
    (h.CollectiveFinish("b"), "rt.wait_collective(b)"),
    (h.CallProgram("sub", (ref("x"), S0), ("b",)), "(b,) = rt.call_program('sub', (x, s0))"),
    (h.CallPartition("part", (ref("x"),), ()), "rt.call_partition('part', (x,))"),
    (h.Comment("from model.py"), "# from model.py"),
    (h.Return((ref("b"), S0, Literal(None))), "return (b, s0, None)"),
]

NESTED: dict[type, tuple[h.Instruction, list[str]]] = {
    h.Reuse: (
        h.Reuse("c", "b", DType.F32, N, ONE),
        ["c = rt.reuse(b, (s0,), (1,), 'f32')", "del b"],
    ),
    h.WithDevice: (
        h.WithDevice(Device("cuda", 1), (h.Copy("b", "x"), h.Free("x"))),
        ["with rt.device_guard('cuda:1'):", "    rt.copy(b, x, False)", "    del x"],
    ),
    h.ProfileRange: (
        h.ProfileRange("k0", (h.Comment("nothing"),)),
        ["with rt.profile_range('k0'):", "    # nothing", "    pass"],
    ),
    h.Branch: (
        h.Branch(
            ref("c"), (h.View("a", "x", DType.F32, N, ONE, expr(0)),), ("a",), (), ("y",), ("z",)
        ),
        [
            "if c:",
            "    a = rt.view(x, (s0,), (1,), 'f32', 0)",
            "    (z,) = (a,)",
            "else:",
            "    (z,) = (y,)",
        ],
    ),
    h.Loop: (
        h.Loop(
            ("v",),
            ("x",),
            (h.ExternCall("t.t.t", (ref("v"),), (), ("c",)),),
            "c",
            (h.ExternCall("f.f.f", (ref("v"), ref("w")), (), ("n",)),),
            ("n",),
            ("r",),
        ),
        [
            "(v,) = (x,)",
            "while True:",
            "    c = rt.extern('t.t.t', (v,), {})",
            "    if not c:",
            "        break",
            "    n = rt.extern('f.f.f', (v, w), {})",
            "    (v,) = (n,)",
            "(r,) = (v,)",
        ],
    ),
    h.Repeat: (
        h.Repeat(
            Sym("s1"),
            expr(5),
            ("v",),
            ("x",),
            (h.ExternCall("f.f.f", (ref("v"), Sym("s1")), (), ("n",)),),
            ("n",),
            ("r",),
        ),
        [
            "(v,) = (x,)",
            "for s1 in range(5):",
            "    n = rt.extern('f.f.f', (v, s1), {})",
            "    (v,) = (n,)",
            "(r,) = (v,)",
        ],
    ),
}


def written(instruction: h.Instruction) -> list[str]:
    """Return the lines of one instruction."""
    program = h.HostProgram("main", (), (), (), (instruction,))
    text = PythonWrapper().emit(program).text
    ast.parse(text)
    _, _, lines = text.partition("def program_main(rt):\n")
    return [line.removeprefix("    ") for line in lines.splitlines() if line != "    pass"]


def test_every_instruction_is_tested_here() -> None:
    """A new instruction needs a line in this file."""
    assert {type(i) for i, _ in LINES} | set(NESTED) == set(h.INSTRUCTIONS)


@pytest.mark.parametrize(("instruction", "line"), LINES, ids=lambda v: type(v).__name__)
def test_one_line_instructions(instruction: h.Instruction, line: str) -> None:
    """Each straight-line instruction is one line of Python."""
    assert written(instruction) == [line]


@pytest.mark.parametrize("kind", list(NESTED), ids=lambda k: k.__name__)
def test_structured_instructions(kind: type) -> None:
    """Bodies are blocks of Python."""
    instruction, lines = NESTED[kind]

    assert written(instruction) == lines


def test_names_of_a_program_are_not_those_of_the_text() -> None:
    """`rt`, `min` and the like may be names of a program."""
    text = """host.program 1 @main
  parameter rt tensor
  parameter min size
  parameter rt_ tensor
  do
    s0 = parameter min
    v = view rt as f32[min(s0, 8)] strides [1] offset 0
    return v, rt_
"""
    emitted = PythonWrapper().emit(parse(text))
    scope: dict[str, Any] = {}
    exec(emitted.text, scope)
    runtime = MagicMock()
    runtime.minimum.side_effect = min
    runtime.view.return_value = "V"
    assert scope[emitted.entry](runtime, "X", 5, "Y") == ("V", "Y")
    runtime.view.assert_called_once_with("X", (5,), (1,), "f32", 0)


def test_condition_on_sizes_in_a_branch() -> None:
    """A branch may depend on sizes alone."""
    branch = h.Branch(S0.lt(4), (), ("x",), (), ("y",), ("z",))

    assert written(branch)[0] == "if s0 < 4:"


def test_sizes_that_are_chosen() -> None:
    """Of a selection only the chosen side is computed."""
    size = minimum(S0, 8) + where(S0.lt(4), 8 // S0, S0)
    text = written(h.DefineSymbol(Sym("s9"), size))

    assert "rt.minimum(" in text[0]
    assert "(8 // s0 if s0 < 4 else s0)" in text[0]


def test_the_text_runs_on_a_runtime() -> None:
    """A program is a function of the runtime and its parameters, as its subprograms are."""
    sub = h.HostProgram("sub", (h.Parameter("a", "tensor"),), (), (), (h.Return((ref("a"),)),))
    main = h.HostProgram(
        "main",
        (h.Parameter("x", "tensor"), h.Parameter("n", "size")),
        (),
        (),
        (
            h.BindParameter(S0, "n"),
            h.CallProgram("sub", (ref("x"),), ("y",)),
            h.Free("x"),
            h.Return((ref("y"), 2 * S0)),
        ),
        subprograms=(sub,),
    )
    emitted = PythonWrapper().emit(main)
    scope: dict[str, Any] = {}
    exec(emitted.text, scope)
    rt = MagicMock()
    rt.call_program.side_effect = lambda name, args: scope[f"program_{name}"](rt, *args)

    assert scope[emitted.entry](rt, "X", 3) == ("X", 6)


def test_same_program_same_bytes() -> None:
    """The wrapper is pure."""
    program = h.HostProgram("main", (), (), (), (h.Return(()),))

    assert PythonWrapper().emit(program) == PythonWrapper().emit(program)
    assert PythonWrapper().content_hash == PythonWrapper().content_hash
