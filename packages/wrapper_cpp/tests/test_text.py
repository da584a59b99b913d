"""The C++ text of every instruction; what is refused; schemas."""

import subprocess

import pytest

from gyrator_ir.diagnostics import ParseError, UnsupportedError
from gyrator_ir.expr import Sym, expr, minimum, where
from gyrator_ir.host import nodes as h
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_ir.modes import Failure
from gyrator_ir.types import Device, DType
from gyrator_wrapper_cpp.schema import Argument, parse_schema, parse_schemas, targets
from gyrator_wrapper_cpp.stage import CppWrapper

S0, U0 = Sym("s0"), Sym("u0")
CPU = Device("cpu")
ONE, N = (expr(1),), (S0,)
F32 = DType.F32
CPU_TEXT = "gy::Device{aoti_torch_device_type_cpu(), 0}"
F32_TEXT = "aoti_torch_dtype_float32()"
SCHEMAS = parse_schemas(
    [
        "aten::mm(Tensor self, Tensor mat2) -> Tensor",
        "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)",
        "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, "
        "ScalarType? dtype=None) -> Tensor",
        "aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, "
        "Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        "aten::rand.generator(SymInt[] size, *, Generator? generator) -> Tensor",
        "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
        "aten::avg(Tensor self, int[2] k, float p=0.5, str mode='a') -> (Tensor[], int, Tensor)",
        "aten::item(Tensor self) -> Scalar",
        "c10d::all_reduce(Tensor input, str reduce_op) -> Tensor",
    ]
)


def ref(name: str) -> h.Ref:
    return h.Ref(name)


def call(target: str, *args: h.Value, results=("b",), **kwargs: h.Value) -> h.ExternCall:
    return h.ExternCall(target, args, tuple(kwargs.items()), results)


# What comes before an instruction in a program, the instruction, and its lines.
X = (
    h.Parameter("x", "tensor"),
    h.Parameter("y", "tensor"),
    h.Parameter("n", "size"),
    h.Parameter("g", "opaque"),
)
CASES: list[tuple[h.Instruction, list[str]]] = [
    (h.BindSize(S0, "x", 1), ["f.s_s0 = f.t_x.size(1);"]),
    (h.BindSize(S0, "x", 0, stride=True), ["f.s_s0 = f.t_x.stride(0);"]),
    (h.BindParameter(S0, "n"), ['f.s_s0 = gy::int_of(f.v_n, "n");']),
    (h.DefineSymbol(Sym("s1"), 2 * S0 + 1), ["f.s_s1 = 2LL*f.s_s0 + 1LL;"]),
    (h.DefineSymbol(Sym("s1"), S0 // 3), ["f.s_s1 = gy::floor_div(f.s_s0, 3LL);"]),
    (h.BindConstant("w", "layer.w"), ["f.t_w = gy::Tensor::borrowed(f.context->constants[0]);"]),
    (
        h.Conform("x", F32, CPU, N, ONE, h.Mend.PENDING),
        [
            f"gy::conform(f.t_x, {{f.s_s0}}, {{1LL}}, {F32_TEXT}, {CPU_TEXT}, gy::PENDING, false, "
            '"x", "");'
        ],
    ),
    (
        h.Conform("x", F32, CPU, N, ONE, what="my.op.default"),
        [
            f"gy::conform(f.t_x, {{f.s_s0}}, {{1LL}}, {F32_TEXT}, {CPU_TEXT}, gy::ALL, true, "
            '"x", "my.op.default");'
        ],
    ),
    (h.Separate(("x", "x"), ("y",)), ["gy::separate({&f.t_x}, {&f.t_y});"]),
    (h.AssertNoNan("x", "k0"), ['gy::assert_finite(f.context, f.t_x, "x", "k0");']),
    (
        h.AssertTrue(S0.lt(8), "too long"),
        ['if (!(f.s_s0 < 8LL)) gy::fail(GY_RUNTIME_ERROR, "%s", "too long");'],
    ),
    (
        h.AssertTrue(S0.lt(8), "outside", Failure.INDEX),
        ['if (!(f.s_s0 < 8LL)) gy::fail(GY_INDEX_ERROR, "%s", "outside");'],
    ),
    (
        h.Allocate("b", F32, CPU, N, ONE),
        [f"f.t_b = gy::allocate({{f.s_s0}}, {{1LL}}, {F32_TEXT}, {CPU_TEXT});"],
    ),
    (
        h.Allocate("b", F32, Device("mydev", 1), N, ONE),
        [f'f.t_b = gy::allocate({{f.s_s0}}, {{1LL}}, {F32_TEXT}, gy::device("mydev:1"));'],
    ),
    (h.AllocatePool("m", expr(256), CPU), [f"f.t_m = gy::bytes(256LL, {CPU_TEXT});"]),
    (
        h.AllocateFromPool("b", "x", expr(64), DType.I64, N, ONE),
        ["f.t_b = gy::placed(f.t_x, 64LL, aoti_torch_dtype_int64(), {f.s_s0}, {1LL});"],
    ),
    (h.Free("x"), ["f.t_x.reset();"]),
    (
        h.Reuse("c", "x", F32, N, ONE),
        [f"f.t_c = gy::reuse(f.t_x, {F32_TEXT}, {{f.s_s0}}, {{1LL}});"],
    ),
    (
        h.View("v", "x", F32, N, ONE, expr(3)),
        [f"f.t_v = gy::view(f.t_x, {F32_TEXT}, {{f.s_s0}}, {{1LL}}, 3LL);"],
    ),
    (
        h.Launch("k0", ("x", "y"), N),
        ["gy::launch(f.context, 0, {&f.t_x, &f.t_y}, {f.s_s0});  // k0"],
    ),
    (
        call("aten.mm.default", ref("x"), ref("y")),
        [
            "{ gy::Call<2> c; c.push(gy::tensor(f.t_x)).push(gy::tensor(f.t_y)); "
            'c.call("aten::mm", "", "T"); f.t_b = c.tensor(0); }'
        ],
    ),
    (
        h.ExternCall("aten.mm.default", (ref("x"), ref("y")), (), ("x",), "aten.mm.out", ("out",)),
        [
            'if (!gy::product(aoti_torch_cpu_mm_out, "aten::mm", false, f.t_x, f.t_x, f.t_y))',
            "  { gy::Call<3> c; c.push(gy::tensor(f.t_x)).push(gy::tensor(f.t_y))"
            '.push(gy::tensor(f.t_x)); c.call("aten::mm", "out", "T"); }',
        ],
    ),
    (
        h.TmaDescriptor("d", "x", N, ONE, expr(4), True),
        ["f.d_d.set(f.t_x, {f.s_s0}, {1LL}, 4LL, true);"],
    ),
    (
        h.TritonLaunch("uk", ((S0,),), (("x", ref("x")),), (("B", Literal(8)),)),
        [
            "{",
            "  const int64_t g[] = {f.s_s0, 1, 1};",
            '  const char* const n[] = {"x", "B"};',
            "  const GyValue a[] = {gy::value_tensor(f.t_x.get()), gy::value_int(8LL)};",
            '  gy::launch_user(f.context, "uk", g, 1, n, a, 2, 1);',
            "}",
        ],
    ),
    (h.Copy("y", "x", True), ["gy::copy(f.t_y, f.t_x, true);"]),
    (h.ReadScalar(U0, "x"), ["f.s_u0 = gy::read_scalar(f.t_x);"]),
    (
        h.CollectiveStart("c10d.all_reduce.default", (ref("x"), Literal("sum")), ("b",)),
        [
            '{ gy::Call<2> c; c.push(gy::tensor(f.t_x)).push(gy::text("sum", 3)); '
            'c.call("c10d::all_reduce", "", "T"); f.t_b = c.tensor(0); }'
        ],
    ),
    (
        h.CollectiveFinish("x"),
        [
            "{ gy::Call<1> c; c.push(gy::tensor(f.t_x)); "
            'c.call("_c10d_functional::wait_tensor", "", "T"); }'
        ],
    ),
    (
        h.WithDevice(Device("cuda", 1), (h.Copy("y", "x"), h.Free("x"))),
        [
            "{",
            "  gy::DeviceGuard guard(gy::Device{aoti_torch_device_type_cuda(), 1});",
            "  gy::copy(f.t_y, f.t_x, false);",
            "  f.t_x.reset();",
            "}",
        ],
    ),
    (
        h.ProfileRange("k0", (h.ReadScalar(U0, "x"),)),
        [
            "{",
            '  gy::ProfileRange range("k0");',
            "  f.s_u0 = gy::read_scalar(f.t_x);",
            "}",
        ],
    ),
    (
        h.Branch(
            ref("x"),
            (h.View("a", "x", F32, N, ONE, expr(0)), h.AllocatePool("w", S0, CPU)),
            ("a",),
            (),
            ("y",),
            ("z",),
        ),
        [
            "if (gy::truth(f.t_x)) {",
            f"  f.t_a = gy::view(f.t_x, {F32_TEXT}, {{f.s_s0}}, {{1LL}}, 0LL);",
            f"  f.t_w = gy::bytes(f.s_s0, {CPU_TEXT});",
            "  f.t_z = static_cast<gy::Tensor&&>(f.t_a);",
            "  f.t_w.reset();",
            "} else {",
            "  f.t_z = f.t_y.share();",
            "}",
        ],
    ),
    (
        h.Branch(S0.lt(4), (), (), (), (), ()),
        ["if (f.s_s0 < 4LL) {", "} else {", "}"],
    ),
    (
        h.Loop(
            ("v",),
            ("x",),
            (h.View("c", "v", DType.BOOL, (), (), expr(0)),),
            "c",
            (call("aten.mm.default", ref("v"), ref("y"), results=("m",)),),
            ("m",),
            ("r",),
        ),
        [
            "f.t_v = f.t_x.share();",
            "for (;;) {",
            "  f.t_c = gy::view(f.t_v, aoti_torch_dtype_bool(), {}, {}, 0LL);",
            "  bool again = gy::truth(f.t_c);",
            "  if (!again) {",
            "    f.t_c.reset();",
            "    break;",
            "  }",
            "  { gy::Call<2> c; c.push(gy::tensor(f.t_v)).push(gy::tensor(f.t_y)); "
            'c.call("aten::mm", "", "T"); f.t_m = c.tensor(0); }',
            "  auto next0 = static_cast<gy::Tensor&&>(f.t_m);",
            "  f.t_v = static_cast<decltype(next0)&&>(next0);",
            "  f.t_c.reset();",
            "}",
            "f.t_r = static_cast<gy::Tensor&&>(f.t_v);",
        ],
    ),
    (
        h.Repeat(
            Sym("s1"),
            expr(5),
            ("v",),
            ("x",),
            (call("aten.mm.default", ref("v"), ref("y"), results=("m",)),),
            ("m",),
            ("r",),
        ),
        [
            "f.t_v = f.t_x.share();",
            "{",
            "  const int64_t count = 5LL;",
            "  for (f.s_s1 = 0; f.s_s1 < count; ++f.s_s1) {",
            "    { gy::Call<2> c; c.push(gy::tensor(f.t_v)).push(gy::tensor(f.t_y)); "
            'c.call("aten::mm", "", "T"); f.t_m = c.tensor(0); }',
            "    auto next0 = static_cast<gy::Tensor&&>(f.t_m);",
            "    f.t_v = static_cast<decltype(next0)&&>(next0);",
            "  }",
            "}",
            "f.t_r = static_cast<gy::Tensor&&>(f.t_v);",
        ],
    ),
    *[
        (
            kind("sub", (ref("x"), S0), ("b",)),
            [
                "{",
                "  gy::Values<2> a;",
                "  gy::Values<2> r;",
                "  a.at[0] = gy::value_tensor(f.t_x.new_handle());",
                "  a.at[1] = gy::value_int(f.s_s0);",
                "  p0_sub_run(f.context, a.at, r.at);",
                '  f.t_b = gy::take(r.at[0], "b");',
                "}",
            ],
        )
        for kind in (h.CallProgram, h.CallPartition)
    ],
    (h.Comment("from model.py\\\nline 2"), ["// from model.py", "// line 2"]),
    (
        h.Return((ref("x"), h.ListValue((ref("x"), S0)), Literal(None), Literal(float("inf")))),
        [
            "f.out[0] = gy::value_tensor(f.t_x.new_handle());",
            "f.out[1] = gy::value_tensor(f.t_x.release());",
            "f.out[2] = gy::value_int(f.s_s0);",
            "f.out[3] = gy::value_none();",
            "f.out[4] = gy::value_float(__builtin_inf());",
        ],
    ),
]
SUB = h.HostProgram(
    "sub",
    (h.Parameter("a", "tensor"), h.Parameter("n", "size")),
    (),
    (),
    (h.Return((ref("a"), ref("n"))),),
)


def program(*instructions: h.Instruction) -> h.HostProgram:
    symbols = (h.DefineSymbol(S0, expr(4)),)
    return h.HostProgram("main", X, (), (), symbols + instructions, subprograms=(SUB,))


USE = h.DefineSymbol(Sym("s1"), S0 + 1)


def written(*instructions: h.Instruction) -> list[str]:
    """Return the lines after those of the inputs and of `s0`."""
    text = CppWrapper(SCHEMAS, mixed_results=True, abi=(2, 13)).emit(program(*instructions)).text
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if line == "  f.s_s0 = 4LL;")
    stop = lines.index("}", start)
    return [line.removeprefix("  ") for line in lines[start + 1 : stop]]


def test_every_instruction_is_tested_here() -> None:
    """A new instruction needs a line in this file."""
    assert {type(i) for i, _ in CASES} == set(h.INSTRUCTIONS)


@pytest.mark.parametrize(("instruction", "lines"), CASES, ids=lambda v: type(v).__name__)
def test_instructions(instruction: h.Instruction, lines: list[str]) -> None:
    used = [USE] if isinstance(instruction, h.BindParameter) else []
    assert written(instruction, *used) == [*lines, *written(*used)]


def test_an_integer_that_nothing_uses_is_not_read() -> None:
    assert written(h.BindParameter(S0, "n")) == []


def test_a_reuse_of_the_same_layout_is_a_move() -> None:
    first = h.Allocate("a", F32, CPU, N, ONE)
    lines = written(first, h.Reuse("b", "a", F32, N, ONE), h.Reuse("c", "b", F32, (expr(1),), ONE))
    assert lines[1:] == [
        "f.t_b = static_cast<gy::Tensor&&>(f.t_a);",
        f"f.t_c = gy::reuse(f.t_b, {F32_TEXT}, {{1LL}}, {{1LL}});",
    ]


def test_products_into_known_floats_of_the_host_ask_nothing() -> None:
    def lines(dtype: DType, device: Device) -> list[str]:
        product = h.ExternCall(
            "aten.mm.default", (ref("x"), ref("y")), (), ("a",), "aten.mm.out", ("out",)
        )
        return written(h.Allocate("a", dtype, device, N, ONE), product)

    assert '"aten::mm", true, f.t_a' in lines(F32, CPU)[1]
    assert '"aten::mm", false, f.t_a' in lines(DType.C64, CPU)[1]
    assert '"aten::mm", false, f.t_a' in lines(F32, Device("cuda", 0))[1]


def test_every_instruction_compiles(compiler: str) -> None:
    """A program with all of them, in functions of their own, is C++17 without a warning."""
    each = [
        h.HostProgram(f"q{k}", X, (), (), (h.DefineSymbol(S0, expr(4)), i), subprograms=(SUB,))
        for k, (i, _) in enumerate(CASES)
    ]
    whole = h.HostProgram("main", (), (), (), (h.Return(()),), subprograms=tuple(each))
    flags = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    for unit in CppWrapper(SCHEMAS, mixed_results=True, abi=(2, 13)).emit(whole).units:
        command = [compiler, *flags, "-x", "c++", "-"]
        subprocess.run(command, input=unit.text, text=True, check=True)


ENCODINGS: list[tuple[h.ExternCall, str]] = [
    (
        call("aten.sum.dim_IntList", ref("x"), h.ListValue((Literal(1),))),
        "c.push(gy::tensor(f.t_x)).push(gy::some(gy::List(1).add(gy::integer(1LL)).take()))"
        ".push(gy::boolean(0LL)).push(gy::none());",
    ),
    (
        call(
            "aten.sum.dim_IntList", ref("x"), S0, Literal(True), dtype=TypeArg("dtype", "float64")
        ),
        "c.push(gy::tensor(f.t_x)).push(gy::some(gy::List(1).add(gy::integer(f.s_s0)).take()))"
        ".push(gy::boolean(1LL)).push(gy::some(gy::integer(aoti_torch_dtype_float64())));",
    ),
    (
        call(
            "aten.empty.memory_format",
            h.ListValue((S0, Literal(2))),
            device=TypeArg("device", "cuda:1"),
            layout=TypeArg("layout", "strided"),
            memory_format=TypeArg("memory_format", "channels_last"),
        ),
        "c.push(gy::List(2).add(gy::integer(f.s_s0)).add(gy::integer(2LL)).take())"
        ".push(gy::none()).push(gy::some(gy::integer(aoti_torch_layout_strided())))"
        ".push(gy::some(gy::where(gy::Device{aoti_torch_device_type_cuda(), 1}))).push(gy::none())"
        ".push(gy::some(gy::integer(aoti_torch_memory_format_channels_last())));",
    ),
    (
        call("aten.rand.generator", h.ListValue(()), generator=ref("g")),
        "c.push(gy::List(0).take()).push(gy::maybe_generator(f.v_g));",
    ),
    (
        call("aten.index.Tensor", ref("x"), h.ListValue((Literal(None), ref("y")))),
        "c.push(gy::tensor(f.t_x)).push(gy::List(2).add(gy::none())"
        ".add(gy::some(gy::tensor(f.t_y))).take());",
    ),
    (
        call("aten.avg.default", ref("x"), Literal(3), Literal(1), results=(("b", "c"), U0, None)),
        "c.push(gy::tensor(f.t_x)).push(gy::List(2).add(gy::integer(3LL)).add(gy::integer(3LL))"
        '.take()).push(gy::real(0x1.0000000000000p+0)).push(gy::text("a", 1));',
    ),
]


@pytest.mark.parametrize(("extern", "pushed"), ENCODINGS)
def test_encodings_follow_the_schema(extern: h.ExternCall, pushed: str) -> None:
    text = "\n".join(written(extern))
    assert pushed in text


def test_results_are_taken_by_kind() -> None:
    text = "\n".join(written(ENCODINGS[-1][0]))
    assert 'c.call("aten::avg", "", "LiT");' in text
    assert "c.list(0, {&f.t_b, &f.t_c});" in text
    assert "f.s_u0 = c.integer(1);" in text
    assert "c.tensor(2)" not in text


NONE = Literal(None)
REFUSED: list[tuple[str, h.Instruction]] = [
    ("GY-WCPP-001", call("aten.no.default", ref("x"))),
    ("GY-WCPP-002", call("aten.mm.default", ref("x"))),
    ("GY-WCPP-002", call("aten.mm.default", ref("x"), Literal("2"))),
    ("GY-WCPP-003", call("aten.mm.default", ref("x"), Literal(2.0))),
    ("GY-WCPP-002", call("aten.mm.default", ref("x"), ref("y"), ref("y"))),
    ("GY-WCPP-002", call("aten.mm.default", ref("x"), ref("y"), odd=Literal(1))),
    ("GY-WCPP-002", call("aten.mm.default", ref("x"), ref("y"), results=(("b", "c"),))),
    ("GY-WCPP-002", call("aten.mm.default", ref("x"), ref("y"), results=("b", "c"))),
    ("GY-WCPP-003", call("aten.add.Tensor", ref("x"), ref("y"))),
    ("GY-WCPP-003", call("aten.item.default", ref("x"), results=(U0,))),
    ("GY-WCPP-003", call("aten.rand.generator", h.ListValue(()), generator=ref("g"))),
    ("GY-WCPP-003", call("aten.sum.dim_IntList", ref("x"), NONE, dtype=TypeArg("dtype", "qint8"))),
    ("GY-WCPP-005", h.CallProgram("sub", (ref("x"), h.ListValue(())), ("b",))),
    ("GY-WCPP-005", h.CallProgram("sub", (ref("x"),), ("b",))),
    ("GY-WCPP-005", h.CallProgram("none", (), ())),
    ("GY-WCPP-005", h.Free("nobody")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "instruction"), REFUSED)
def test_what_is_refused(code: str, instruction: h.Instruction) -> None:
    """`refuses` names it, `emit` raises the same."""
    wrapper = CppWrapper(SCHEMAS, mixed_results=True)
    actual = wrapper.refuses(program(instruction))
    assert actual is not None
    assert actual.code == code
    assert actual.help
    with pytest.raises(UnsupportedError) as error:
        wrapper.emit(program(instruction))
    assert error.value.diagnostic == actual


def test_results_of_several_types_need_a_libtorch_that_gives_them() -> None:
    """The types of results read from both ends are the same, or the call is refused."""
    size = h.ListValue((S0, S0))
    mixed = call("aten.avg.default", ref("x"), size, results=(None, U0, None))
    actual = CppWrapper(SCHEMAS).refuses(program(mixed))
    assert actual is not None and actual.code == "GY-WCPP-003"
    assert CppWrapper(SCHEMAS, mixed_results=True).refuses(program(mixed)) is None


def test_the_fallback_takes_what_the_abi_does_not() -> None:
    add = call("aten.add.Tensor", ref("x"), ref("y"), alpha=Literal(2 - 1j))
    text = CppWrapper(SCHEMAS, mixed_results=True, fallback=True).emit(program(add)).text
    assert 'gy::call_op(f.context, "aten::add", "Tensor", a, 3, "1", r.at, 1);' in text
    assert "gy::value_list(l0, 2, GY_COMPLEX)" in text


def test_sizes_select_and_take_extrema() -> None:
    (line,) = written(h.DefineSymbol(Sym("s9"), minimum(S0, 8) + where(S0.lt(4), expr(1), S0)))
    assert "(f.s_s0 < 4LL ? 1LL : f.s_s0)" in line
    assert "? 8LL : f.s_s0" in line or "? f.s_s0 : 8LL" in line


def test_same_program_same_bytes() -> None:
    """The wrapper is pure, and its hash tells tables apart."""
    result = program(*(i for i, _ in CASES[:5]))
    wrapper = CppWrapper(SCHEMAS, mixed_results=True)
    assert wrapper.emit(result) == CppWrapper(dict(SCHEMAS), mixed_results=True).emit(result)
    assert wrapper.content_hash == CppWrapper(dict(SCHEMAS), mixed_results=True).content_hash
    assert wrapper.content_hash != CppWrapper().content_hash
    assert wrapper.name == "cpp"


def test_kernels_and_constants_are_listed_in_order() -> None:
    inner = h.HostProgram(
        "sub", (), (), (), (h.Launch("k2", (), ()), h.BindConstant("w", "b"), h.Return(()))
    )
    instructions = (h.Launch("k1", (), ()), h.Launch("k2", (), ()), h.BindConstant("w", "a"))
    result = h.HostProgram("main", (), (), (), instructions, subprograms=(inner,))
    emitted = CppWrapper().emit(result)
    assert (emitted.kernels, emitted.constants) == (("k2", "k1"), ("b", "a"))
    assert (emitted.language, emitted.entry) == ("c++", "gy_main")


def test_schemas_are_read_from_text() -> None:
    actual = parse_schema(
        "aten::conv.x(Tensor(a!)[] self, Tensor? b, SymInt[2] k=1, *, float e=1e-05, "
        'str m="a, b", int[] d=[0, 1], bool? f=None, MemoryFormat? c=contiguous_format, '
        "Scalar inf=inf) -> (Tensor(a!)[] r, int, Tensor(b -> *) s)"
    )
    assert (actual.op, actual.overload, actual.target) == ("aten::conv", "x", "aten.conv.x")
    assert actual.returns == ("Tensor[]", "int", "Tensor")
    assert actual.arguments == (
        Argument("self", "Tensor[]"),
        Argument("b", "Tensor?"),
        Argument("k", "SymInt[2]", 1, True),
        Argument("e", "float", 1e-05, True),
        Argument("m", "str", "a, b", True),
        Argument("d", "int[]", (0, 1), True),
        Argument("f", "bool?", None, True),
        Argument("c", "MemoryFormat?", "contiguous_format", True),
        Argument("inf", "Scalar", float("inf"), True),
    )
    assert parse_schema("a::b() -> ()").returns == ()


@pytest.mark.parametrize(
    "text", ["", "aten::mm", "aten::mm(Tensor) -> Tensor", "mm(Tensor x) -> ()"]
)
def test_what_is_no_schema(text: str) -> None:
    with pytest.raises(ParseError, match="GY-WCPP-006"):
        parse_schema(text)


def test_targets_are_the_ops_called() -> None:
    mm = h.ExternCall("aten.mm.default", (), (), ("x",), "aten.mm.out", ("out",))
    start = h.CollectiveStart("c10d.all_reduce.default", (), ("b",))
    assert targets(program(mm, start, mm)) == ("aten.mm.out", "c10d.all_reduce.default")
