"""Generated programs, compiled with a test double of libtorch, against the interpreter."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gyrator_ir.host.parse import parse
from gyrator_testing.interp.externs import DEFAULT
from gyrator_testing.interp.host import run_host
from gyrator_wrapper_cpp.schema import parse_schemas
from gyrator_wrapper_cpp.stage import CppWrapper, interface, output_count
from gyrator_wrapper_cpp.units import LIMIT

F32 = np.float32
SCHEMAS = parse_schemas(
    [
        "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)",
        "test::split(Tensor[] x, SymInt n, int? more, ScalarType dtype, int dim=1, *, "
        "str how='row') -> (Tensor[] rows, SymInt n, Tensor rest)",
        "test::double(Tensor x) -> Tensor",
        "test::zero() -> Tensor",
        "test::below(Tensor i, SymInt n) -> Tensor",
        "test::next(Tensor i) -> Tensor",
        "test::same(Tensor(a) i) -> Tensor(a)",
        "test::scaled(Tensor x, Scalar by=2) -> Tensor",
        "_c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor",
    ]
)


def _split(pair, size, more, dtype, dim=1, how="row"):
    assert (dtype.value, dim, how) == ("float32", 1, "row")
    return [x[..., 0] for x in pair], size + (more or 0), np.zeros((), F32)


EXTERNS = {
    **DEFAULT,
    "test.split.default": _split,
    "test.double.default": lambda a: 2 * a,
    "test.zero.default": lambda: np.zeros((), np.int64),
    "test.below.default": lambda i, n: np.asarray(i < n),
    "test.next.default": lambda i: np.asarray(i + 1),
    "test.same.default": lambda i: i,
    "test.scaled.default": lambda x, by=2: by * x,
    "_c10d_functional.all_reduce.default": lambda x, op, group: 2 * x,
}
FILL = """extern "C" int64_t fill(void* const* buffers, const int64_t* sizes) {
  const float* x = static_cast<const float*>(buffers[0]);
  float* y = static_cast<float*>(buffers[1]);
  for (int64_t i = 0; i < sizes[0]; ++i) {
    if (x[i] > 100) return 2;
    y[i] = -x[i];
  }
  return 0;
}
"""
KERNEL = """  kernel fill on cpu (i0 < s0) sizes (s0)
    parameter p0: f32[s0] strides [1] on cpu
    parameter p1: f32[s0] strides [1] on cpu
    outer
      a = load p0[i0]
      b: f32 = neg a
      store p1[i0], b
"""
EVERYTHING = """host.program 1 @p
  constant w: f32[2, 2] strides [2, 1] on cpu key weight
  parameter n size
  parameter x tensor
  parameter flag tensor
  do
    s0 = parameter n
    s1 = dim x 1
    s2 = dim x 0 stride
    s3 = expr s0*s1
    w = constant weight
    conform x to f32[s0, 2] strides [s2, 1] on cpu mend nothing
    assert_finite x from "x"
    assert (s0 < 9) "too long"
    note "a remark"
    pool = pool 64*s0 on cpu
    a = place pool at 8 as f32[s0, 2] strides [2, 1]
    extern test.zero.default () -> (ws)
    extern aten.mm.default (x, w) -> (a) out aten.mm.out names (out)
    extern test.split.default ([a, a], (s0), 4, <dtype float32>) -> ([p, q], (u0), none)
    r = view a as f32[s0] strides [2] offset 1
    copy r -> p
    with_device cpu
      profile "range"
        start _c10d_functional.all_reduce.default (p, "sum", "0") -> (d)
        finish d
    u1 = read ws
    branch flag then (d) else (e) -> (f)
      then
      else
        e = view d as f32[s0] strides [0] offset 0
    branch (s0 < 3) then (x) else (a) -> (g)
      then
      else
    k = allocate i64[] strides [] on cpu
    kk = reuse k as i64[] strides []
    extern test.zero.default () -> (z)
    copy z -> kk
    loop (i, other) from (kk, z) while t next (other, j) -> (last, before)
      condition
        extern test.below.default (i, 4) -> (t)
      body
        extern test.next.default (i) -> (j)
    call sub (f, (s3)) -> (o0, o1)
    call_partition sub (f, 7) -> (o2, o3)
    free pool
    return f, g, o1, (u0), none, o2, o3, (u1), last, before, a, w, 0.5, true
  host.program 1 @sub
    parameter t tensor
    parameter n size
    do
      return t, n
"""
LAUNCHES = f"""host.program 1 @p
  parameter x tensor
  parameter n size
{KERNEL}  do
    s0 = parameter n
    y = allocate f32[s0] strides [1] on cpu
    launch fill (x, y) sizes [s0]
    half = view y as f32[s0 // 2] strides [2] offset s0 % 2
    pool = pool 4*s0 + 64 on cpu
    z = place pool at 64 as f32[s0] strides [1]
    launch fill (y, z) sizes [s0]
    tail = view z as f32[(s0 - 7) // 2 + 4] strides [1] offset (s0 - 7) % 2
    bits = view tail as i32[1] strides [1] offset 0
    u0 = read bits
    m = reuse y as i32[s0] strides [1]
    free pool
    return z, half, tail, m, (u0), (min(s0, 4) - max(s0, 3))
"""


def same(value, expected):
    flat = [leaf for v in expected for leaf in (v if isinstance(v, list) else [v])]
    assert len(value) == len(flat)
    for a, b in zip(value, flat, strict=True):
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        else:
            assert (a, type(a)) == (b, type(b))


@pytest.fixture(scope="module")
def everything(build):
    return build(parse(EVERYTHING), CppWrapper(SCHEMAS, mixed_results=True))


@pytest.fixture(scope="module")
def launches(build):
    return build(parse(LAUNCHES), CppWrapper(), FILL)


WEIGHT = {"weight": np.array([[0, 1], [1, 0]], F32)}


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_it_does_as_the_interpreter(everything, rows, flag):
    x = np.random.default_rng(rows).standard_normal((rows, 2)).astype(F32)
    inputs = [rows, x, np.asarray(flag)]
    expected = run_host(parse(EVERYTHING), inputs, WEIGHT, EXTERNS)

    same(everything(inputs, WEIGHT), expected)
    assert everything.alive == 0


@pytest.mark.parametrize(
    ("x", "n", "status", "text"),
    [
        (
            np.zeros((3, 3), F32),
            3,
            7,
            "the input x is of dtype 6, sizes (3, 3), strides (3, 1); "
            "the program was compiled for dtype 6, (3, 2), (3, 1)",
        ),
        (np.full((3, 2), np.nan, F32), 3, 4, "x"),
        (np.zeros((9, 2), F32), 9, 1, "too long"),
    ],
)
def test_checks_fail_as_in_the_interpreter(everything, host_error, x, n, status, text):
    kind = RuntimeError if status == 1 else AssertionError
    inputs = [n, x, np.asarray(True)]
    with pytest.raises(kind) as expected:
        run_host(parse(EVERYTHING), inputs, WEIGHT, EXTERNS)
    with pytest.raises(host_error) as caught:
        everything(inputs, WEIGHT)
    assert (caught.value.status, str(caught.value)) == (status, text)
    message = {4: "x holds NaN or infinity: x", 7: "x is not laid out as (3, 2), (3, 1)"}
    assert str(expected.value) == message.get(status, text)
    assert everything.alive == 0


def test_whatever_fails_nothing_leaks(everything, host_error):
    """Each call of the ABI fails once."""
    inputs = [3, np.ones((3, 2), F32), np.asarray(False)]
    everything(inputs, WEIGHT)
    failed = 0
    for n in range(1000):
        try:
            everything(inputs, WEIGHT, fail_at=n)
        except host_error:
            failed += 1
        else:
            break
        assert everything.alive == 0, f"call {n}"
    assert failed > 80
    assert everything.alive == 0


def test_ten_thousand_calls_leave_nothing(launches, host_error):
    built = launches
    good, bad = np.ones(5, F32), np.full(5, 101, F32)
    for n in range(10_000):
        if n % 2:
            built([good, 5])
        else:
            with pytest.raises(host_error):
                built([bad, 5])
    assert built.alive == 0


@pytest.mark.parametrize("n", [2, 5, 8])
def test_launches_views_and_floor_semantics(launches, n):
    built = launches
    x = np.random.default_rng(n).standard_normal(n).astype(F32)
    same(built([x, n]), run_host(parse(LAUNCHES), [x, n]))
    assert built.alive == 0


def test_a_kernel_that_fails_says_which_check(launches, host_error):
    with pytest.raises(host_error) as error:
        launches([np.full(4, 101, F32), 4])
    assert error.value.status == 3
    assert error.value.kernel == (0, 2)


def test_wrong_arguments_are_errors(everything, host_error):
    with pytest.raises(host_error, match="x is not a tensor"):
        everything([3, 3, np.asarray(True)], WEIGHT)
    with pytest.raises(host_error, match="n is not an integer"):
        everything([np.zeros(1, F32), np.zeros((3, 2), F32), np.asarray(True)], WEIGHT)
    assert everything.alive == 0


SCALAR = """host.program 1 @p
  parameter x tensor
  do
    u0 = read x
    branch x then (a) else (b) -> (c)
      then
        a = view x as u8[0] strides [1] offset 0
      else
        b = view x as u8[1] strides [1] offset 0
    return (u0), c
"""


@pytest.fixture(scope="module")
def scalar(build):
    return build(parse(SCALAR), CppWrapper())


TYPES = [np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, F32, np.float64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("value", [0, 1])
def test_scalars_of_every_type(scalar, dtype, value):
    built = scalar
    x = np.asarray(value, dtype)
    same(built([x]), run_host(parse(SCALAR), [x]))
    assert built.alive == 0


HOOKS = """
#include <stdio.h>
#include <string.h>
static double item(const GyValue& v) {
  void* at = nullptr;
  aoti_torch_get_data_ptr(v.tensor, &at);
  return *static_cast<float*>(at);
}
extern "C" int32_t call_op(
    void*, const char* op, const char*, const GyValue* args, int32_t n, const char* wanted,
    GyValue* results, int32_t m, char* error, int64_t size) {
  if (n != 2 || strcmp(wanted, "1") != 0 || m != 1 || args[1].kind != GY_FLOAT ||
      item(args[0]) == 7) {
    snprintf(error, static_cast<size_t>(size), "no %s", op);
    return GY_RUNTIME_ERROR;
  }
  AtenTensorHandle made = nullptr;
  const int64_t one = 1;
  aoti_torch_empty_strided(1, &one, &one, aoti_torch_dtype_float32(), 0, 0, &made);
  void* at = nullptr;
  aoti_torch_get_data_ptr(made, &at);
  *static_cast<float*>(at) = static_cast<float>(item(args[0]) * args[1].real);
  results[0].kind = GY_TENSOR;
  results[0].tensor = made;
  return 0;
}
extern "C" int32_t launch_user(
    void*, const char* kernel, const int64_t* grids, int32_t n_grids, const char* const* names,
    const GyValue* values, int32_t n, int32_t constants, char*, int64_t) {
  const GyDescriptor* d = values[0].descriptor;
  if (strcmp(kernel, "mine") != 0 || n_grids != 1 || grids[0] != 3 || grids[2] != 1 ||
      n != 2 || constants != 1 ||
      strcmp(names[1], "N") != 0 || d->rank != 1 || d->block[0] != 2)
    return GY_RUNTIME_ERROR;
  void* at = nullptr;
  aoti_torch_get_data_ptr(d->tensor, &at);
  *static_cast<float*>(at) += static_cast<float>(values[1].integer);
  return 0;
}
"""
HOOKED = """host.program 1 @p
  parameter x tensor
  user_kernel mine (x, N)
    | pass
  do
    extern test.scaled.default (x) with {by=2.5} -> (y)
    d = tma y [1] block [2] bytes 4
    triton mine grid [[3]] {x=d} constants {N=3}
    free d
    return y
"""


def test_hooks_take_what_the_abi_cannot(build, host_error):
    wrapper = CppWrapper(SCHEMAS, mixed_results=True, fallback=True)
    built = build(parse(HOOKED), wrapper, HOOKS, call_op="call_op", launch_user="launch_user")

    def mine(x, N):
        x += N

    x = np.full(1, 4, F32)
    same(built([x]), run_host(parse(HOOKED), [x], externs={**EXTERNS, "mine": mine}))
    with pytest.raises(host_error, match="no test::scaled"):
        built([np.full(1, 7, F32)])
    built.hooks.clear()
    with pytest.raises(host_error, match="there is no hook to call test::scaled"):
        built([x])
    assert built.alive == 0


def test_lent_inputs_stay_their_owners(launches, host_error):
    """After a call that ends well, one that fails, and when a result is the input itself."""
    for x, fails in ((np.ones(5, F32), False), (np.full(5, 101, F32), True)):
        handle = launches.tensor(x)
        for _ in range(2):
            if fails:
                with pytest.raises(host_error):
                    launches([ctypes.c_void_p(handle), 5])
            else:
                same(launches([ctypes.c_void_p(handle), 5])[:1], [x])
        np.testing.assert_array_equal(launches.array(handle), x)
    assert launches.alive == 0


def test_a_lent_input_may_be_a_result(everything):
    x = np.ones((2, 2), F32)
    handle = everything.tensor(x)
    actual = everything([2, ctypes.c_void_p(handle), np.asarray(True)], WEIGHT)
    np.testing.assert_array_equal(actual[1], x)
    np.testing.assert_array_equal(everything.array(handle), x)
    assert everything.alive == 0


def test_long_programs_are_cut_into_functions(build):
    lines = "".join(f"    extern test.next.default (b{k}) -> (b{k + 1})\n" for k in range(700))
    frees = "".join(f"    free b{k}\n" for k in range(1, 700))
    start = "host.program 1 @p\n  parameter b0 tensor\n  do\n"
    program = parse(start + lines + frees + "    return b700\n")
    first, *others = CppWrapper(SCHEMAS, mixed_results=True).emit(program).units

    assert len(others) >= 1
    assert sum(len(unit.symbols) for unit in others) >= 6
    assert first.symbols == ("gy_main",)
    built = build(program, CppWrapper(SCHEMAS, mixed_results=True))
    same(built([np.zeros(3, F32)]), [np.full(3, 700, F32)])
    assert built.alive == 0


def test_no_unit_is_over_two_thousand_lines():
    """However many inputs, instructions and results there are."""
    count = 2500
    parameters = "".join(f"  parameter primals_{k} tensor\n" for k in range(count))
    views = "".join(
        f"    tangents_{k} = view primals_{k} as f32[2] strides [1] offset 0\n"
        for k in range(count)
    )
    results = ", ".join(f"tangents_{k}" for k in range(count))
    text = f"host.program 1 @p\n{parameters}  do\n{views}    return {results}\n"
    sizes = [len(unit.text.splitlines()) for unit in CppWrapper().emit(parse(text)).units]
    assert max(sizes) <= LIMIT
    assert len(sizes) > 10


def test_no_call_leaks(compiler: str, tmp_path: Path) -> None:
    """Under LeakSanitizer: 10,000 calls that end well, and each call of the ABI failing once."""
    program = parse(EVERYTHING)
    (unit,) = CppWrapper(SCHEMAS, mixed_results=True).emit(program).units
    here = Path(__file__).parent
    main = interface() + (here / "double.cpp").read_text() + (here / "leaks.cpp").read_text()
    (tmp_path / "program.cpp").write_text(unit.text)
    (tmp_path / "main.cpp").write_text(main)
    flags = ["-std=c++17", "-g", "-fsanitize=leak", f"-DOUTPUTS={output_count(program)}"]
    files = ["program.cpp", "main.cpp", "-o", "program"]
    subprocess.run([compiler, *flags, *files], cwd=tmp_path, check=True)
    done = subprocess.run(
        ["./program", "10000"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 80
