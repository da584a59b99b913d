"""The Python text of every instruction, and its scoping."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from gyrator_ir.expr import Sym, expr, minimum, where
from gyrator_ir.host import nodes as h
from gyrator_ir.host.parse import parse
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_ir.types import Device, DType
from gyrator_wrapper_python.emit import BodyWriter
from gyrator_wrapper_python.stage import PythonWrapper

S0, U0 = Sym("s0"), Sym("u0")
CPU = Device("cpu")
ONE = (expr(1),)
N = (S0,)


def ref(name: str) -> h.Ref:
    return h.Ref(name)


LINES: list[tuple[h.Instruction, str]] = [
    (h.BindSize(S0, "x", 1), "s0 = p.size_of(x, 1)"),
    (h.BindSize(S0, "x", 0, stride=True), "s0 = p.stride_of(x, 0)"),
    (h.BindParameter(S0, "n"), "s0 = p.integer(n)"),
    (h.DefineSymbol(Sym("s1"), 2 * S0 + 1), "s1 = p.integer(2*s0 + 1)"),
    (h.BindConstant("w", "layer.w"), "w = p.constant('layer.w')"),
    (
        h.Conform("x", DType.F32, CPU, N, ONE, what="aten.mm.default"),
        "p.conform(x, (s0, ), (1, ), 'f32', 'cpu', 'all', 'x', 'aten.mm.default')",
    ),
    (h.Separate(("x",), ("y", "z")), "p.separate((x, ), (y, z, ))"),
    (h.AssertNoNan("x", "k0"), "p.assert_no_nan(x, 'k0')"),
    (
        h.AssertTrue(S0.lt(8), "too long"),
        "p.assert_true(lambda s0: s0 < 8, (s0, ), 'too long')",
    ),
    (
        h.Allocate("b", DType.F32, CPU, N, ONE),
        "b = p.allocate((s0, ), (1, ), 'f32', 'cpu')",
    ),
    (h.AllocatePool("m", expr(256), CPU), "m = p.pool(256, 'cpu')"),
    (
        h.AllocateFromPool("b", "m", expr(64), DType.I64, N, ONE),
        "b = p.from_pool(m, 64, (s0, ), (1, ), 'i64')",
    ),
    (h.Free("b"), "p.free(b)"),
    (h.Reuse("c", "b", DType.F32, N, ONE), "c = p.reuse(b, (s0, ), (1, ), 'f32')"),
    (
        h.View("v", "x", DType.F32, N, ONE, expr(3)),
        "v = p.view(x, (s0, ), (1, ), 3, 'f32')",
    ),
    (h.Launch("k0", ("x", "b"), N), "p.launch('k0', (x, b, ), (s0, ))"),
    (
        h.ExternCall("aten.mm.default", (ref("x"), ref("y")), (), ("b",)),
        "(b, ) = p.extern('aten.mm.default', (x, y, ), {}, results=('tensor', ))",
    ),
    (
        h.ExternCall("aten.mm.default", (ref("x"), ref("y")), (), ("b",), "aten.mm.out", ("out",)),
        "p.extern('aten.mm.out', (x, y, ), {'out': b, })",
    ),
    (
        h.ExternCall("a.b.c", (ref("x"),), (), (("b", "c"), None, U0)),
        "(b, c, u0, ) = p.extern('a.b.c', (x, ), {}, results=(2, None, 'size', ))",
    ),
    (
        h.ExternCall(
            "a.b.c",
            (h.ListValue((ref("x"), S0)), Literal("add"), Literal(float("inf"))),
            (("dtype", TypeArg("dtype", "float32")), ("n", Literal(None))),
            (),
        ),
        "p.extern('a.b.c', ([x, s0], 'add', float('inf'), ), "
        "{'dtype': rt.dtype('float32'), 'n': None, })",
    ),
    (
        h.TmaDescriptor("d", "x", N, ONE, expr(4), True),
        "d = p.tma_descriptor(x, (s0, ), (1, ), 4, True)",
    ),
    (
        h.TritonLaunch("uk", ((S0,),), (("x", ref("x")),), (("B", Literal(8)),)),
        "p.triton('uk', ((s0, ), ), {'x': x, }, {'B': 8, })",
    ),
    (h.Copy("b", "x", True), "p.copy(b, x, True)"),
    (h.ReadScalar(U0, "x"), "u0 = p.read_scalar(x)"),
    (
        h.CollectiveStart(
            "_c10d_functional.all_reduce.default", (ref("x"), Literal("sum")), ("b",)
        ),
        "(b, ) = p.extern('_c10d_functional.all_reduce.default', (x, 'sum', ), {}, "
        "results=('tensor', ))",
    ),
    (h.CollectiveFinish("b"), "p.wait_collective(b)"),
    (h.CallProgram("sub", (ref("x"), S0), ("b",)), "(b, ) = p.call_program('sub', (x, s0, ))"),
    (h.CallPartition("part", (ref("x"),), ()), "p.call_partition('part', (x, ))"),
    (h.Comment("from model.py"), "# from model.py"),
    (h.Return((ref("b"), S0, Literal(None))), "return p.finish((b, s0, None, ))"),
]

NESTED: dict[type, tuple[h.Instruction, list[str]]] = {
    h.WithDevice: (
        h.WithDevice(Device("cuda", 1), (h.Copy("b", "x"), h.Free("x"))),
        [
            "def body1(p1, b, x):",
            "    p1.copy(b, x, False)",
            "    p1.free(x)",
            "    return p1.finish(())",
            "p.with_device('cuda:1', body1, (b, x, ))",
            "p.free(x)",
        ],
    ),
    h.ProfileRange: (
        h.ProfileRange("k0", (h.Launch("k0", ("x",), ()),)),
        [
            "def body1(p1, x):",
            "    p1.launch('k0', (x, ), ())",
            "    return p1.finish(())",
            "p.profile_range('k0', body1, (x, ))",
        ],
    ),
    h.Branch: (
        h.Branch(ref("c"), (h.Reuse("a", "x", DType.F32, N, ONE),), ("a",), (), ("y",), ("z",)),
        [
            "def then1(p1, x, s0, y):",
            "    a = p1.reuse(x, (s0, ), (1, ), 'f32')",
            "    return p1.finish((a, ))",
            "def otherwise1(p1, x, s0, y):",
            "    return p1.finish((y, ))",
            "(z, ) = p.branch(c, then1, otherwise1, (x, s0, y, ))",
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
            "def test1(p1, v, w):",
            "    (c, ) = p1.extern('t.t.t', (v, ), {}, results=('tensor', ))",
            "    return p1.finish((c, ))",
            "def body1(p1, v, w):",
            "    (n, ) = p1.extern('f.f.f', (v, w, ), {}, results=('tensor', ))",
            "    return p1.finish((n, ))",
            "(r, ) = p.loop(test1, body1, (x, ), (w, ))",
        ],
    ),
}


def written(instruction: h.Instruction) -> list[str]:
    """Return the lines of one instruction."""
    program = h.HostProgram("main", (), (), (), (instruction,))
    lines = PythonWrapper().emit(program).text.splitlines()
    start = next(k for k, line in enumerate(lines) if "rt.program" in line)
    return [line.removeprefix("    ") for line in lines[start + 1 :]]


def test_every_instruction_has_a_writer() -> None:
    """The wrapper is a total function over the Wrapper IR."""
    assert set(BodyWriter.WRITERS) == set(h.INSTRUCTIONS)


def test_every_instruction_is_tested_here() -> None:
    """A new instruction needs a line in this file."""
    assert {type(i) for i, _ in LINES} | set(NESTED) == set(h.INSTRUCTIONS)


@pytest.mark.parametrize(("instruction", "line"), LINES, ids=lambda v: type(v).__name__)
def test_one_line_instructions(instruction: h.Instruction, line: str) -> None:
    """Each straight-line instruction is one line of Python."""
    assert written(instruction) == [line]


@pytest.mark.parametrize("kind", list(NESTED), ids=lambda k: k.__name__)
def test_structured_instructions(kind: type) -> None:
    """Bodies become functions; what they use comes in as parameters, what they bind goes out."""
    instruction, lines = NESTED[kind]

    assert written(instruction) == lines


def test_names_of_a_program_are_not_those_of_the_text() -> None:
    """`p`, `p1`, `rt` and `body1` may be names of a program."""
    whole = """host.program 1 @main
  parameter {p} tensor
  parameter {rt_} size
  do
    s0 = parameter {rt_}
    {p1} = view {p} as f32[s0] strides [1] offset 0
    with_device cpu
      {rt} = view {p1} as f32[s0] strides [1] offset 0
      {body1} = reuse {rt} as f32[s0] strides [1]
    return {body1}, (s0)
"""
    names = ("p", "p1", "rt", "body1", "rt_")
    calls = []
    for change in (str, "x{}".format):
        text = PythonWrapper().emit(parse(whole.format(**{n: change(n) for n in names}))).text
        scope: dict[str, Any] = {}
        exec(text, scope)
        rt = MagicMock()
        recorder = rt.program.return_value
        recorder.parameters = ("X", "N")
        recorder.integer.return_value = 5
        inner = MagicMock()
        recorder.with_device.side_effect = lambda device, body, given, to=inner: (body(to, *given),)
        inner.reuse.return_value = "reused"
        inner.finish.side_effect = lambda values: values[0]
        scope["build"](rt)
        calls.append(
            [str(c) for c in (recorder.view.mock_calls[0], *recorder.finish.mock_calls)]
            + [call[0] for call in inner.mock_calls]
        )
    assert calls[0] == calls[1]
    assert calls[0][1] == "call(('reused', 5))"


def test_condition_on_sizes_in_a_branch() -> None:
    """A branch may depend on sizes alone."""
    branch = h.Branch(S0.lt(4), (), ("x",), (), ("y",), ("z",))

    assert (
        written(branch)[-1]
        == "(z, ) = p.branch((lambda s0: s0 < 4, (s0, )), then1, otherwise1, (x, y, ))"
    )


def test_sizes_that_python_cannot_compute_on_recorded_values() -> None:
    """Minima and selections go through the recorder."""
    text = written(h.DefineSymbol(Sym("s9"), minimum(S0, 8) + where(S0.lt(4), expr(1), S0)))

    assert "p.minimum(8, s0)" in text[0] or "p.minimum(s0, 8)" in text[0]
    assert "p.select(lambda s0: s0 < 4, (s0, ), 1, s0)" in text[0]


def test_the_text_runs_on_a_recorder() -> None:
    """Executing `build` calls the recorder in order, subprograms first, and returns its result."""
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
            h.Return((ref("y"),)),
        ),
        subprograms=(sub,),
    )
    emitted = PythonWrapper().emit(main)
    scope: dict[str, Any] = {}
    exec(emitted.text, scope)
    rt = MagicMock()
    p = rt.program.return_value
    p.parameters = ("X", "N")
    p.call_program.return_value = ("Y",)

    result = scope[emitted.entry](rt)

    assert result is p.finish.return_value
    rt.subprogram.assert_called_once_with("sub", scope["build_sub"], capture="never")
    assert [c[0] for c in p.method_calls] == ["integer", "call_program", "free", "finish"]
    p.finish.assert_called_once_with(("Y",))


def test_same_program_same_bytes() -> None:
    """The wrapper is pure."""
    program = h.HostProgram("main", (), (), (), (h.Return(()),))

    assert PythonWrapper().emit(program) == PythonWrapper().emit(program)
    assert PythonWrapper().content_hash == PythonWrapper().content_hash
