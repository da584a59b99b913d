"""The three interpreters agree; schedules and host programs that go wrong are caught."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from gyrator_ir.diagnostics import ParseError
from gyrator_ir.host.nodes import INSTRUCTIONS
from gyrator_ir.levels import level_of, parse_program
from gyrator_testing.baseline import baseline_host, baseline_schedule
from gyrator_testing.feeds import assert_same, assert_same_meaning, feed
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.kernel import run_kernel, run_schedule
from gyrator_testing.levels import run_program
from gyrator_testing.strategies import ALL_OPS, loop_programs

F32 = np.float32


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(loop_programs(ops=ALL_OPS))
def test_plain_scheduling_keeps_the_meaning(p):
    schedule = baseline_schedule(p)
    level_of(schedule).verify(schedule)
    assert_same_meaning(p, schedule)
    host = baseline_host(schedule)
    level_of(host).verify(host)
    first = feed(p)
    second = first.copy()
    wanted = run_program(p, first.inputs)
    assert_same(run_program(host, second.inputs), wanted, "output")
    assert_same(second.inputs, first.inputs, "argument")


FUSED = """kernel.schedule 1 @p
  in n: size s0
  in x: f32[s0, 8] strides [8, 1] on cpu
  buffer y: f32[s0, 8] strides [8, 1] on cpu
  buffer z: f32[s0, 8] strides [8, 1] on cpu
  kernel k0 on cpu (i0 < s0) inner (r0 < 2, r1 < 4) sizes (s0)
    parameter x: f32[s0, 8] strides [8, 1] on cpu
    parameter y: f32[s0, 8] strides [8, 1] on cpu
    local t: f32[8]
    inner
      a = load x[8*i0 + 4*r0 + r1]
      m, n: f32 = reduce.online_softmax a
      store t[4*r0 + r1], a
    outer
      half: f32 = const 0.5
      k: f32 = mul n, half
    inner
      a = load t[4*r0 + r1]
      b: f32 = sub a, m
      c: f32 = exp b
      d: f32 = div c, k
      s: f32 = scan.sum d reverse
      store y[8*i0 + 4*r0 + r1], s
  kernel k1 on cpu (i0 < 8*s0) sizes (s0)
    parameter y: f32[s0, 8] strides [8, 1] on cpu
    parameter z: f32[s0, 8] strides [8, 1] on cpu
    outer
      a = load y[i0]
      b: f32 = neg a
      store z[i0], b
  life y 0 to 1
  life z 1 to 2 reuses y
  return z
"""


def expected(x):
    e = np.exp(x.astype(np.float64))
    p = 2 * e / e.sum(1, keepdims=True)
    return -p[:, ::-1].cumsum(1)[:, ::-1]


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_a_fused_kernel(rows):
    x = np.random.default_rng(0).standard_normal((rows, 8)).astype(F32)
    (z,) = run_schedule(parse_program(FUSED), [rows, x])
    np.testing.assert_allclose(z, expected(x), rtol=1e-5)


def test_a_kernel_alone():
    kernel = parse_program(FUSED).nodes[0]
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(F32)
    y = np.full(30, -1, F32)
    run_kernel(kernel, {"x": x.ravel(), "y": y}, {"s0": 3})
    np.testing.assert_allclose(-y[:24].reshape(3, 8), expected(x), rtol=1e-5)
    assert (y[24:] == -1).all()


@pytest.mark.parametrize(
    ("buffers", "sizes", "code"),
    [
        ({"x": np.zeros(24, F32)}, {"s0": 3}, "GY-INTERP-001"),
        ({"x": np.zeros(24, F32), "y": np.zeros(24, F32)}, {}, "GY-INTERP-001"),
        ({"x": np.zeros(23, F32), "y": np.zeros(24, F32)}, {"s0": 3}, "GY-INTERP-002"),
        ({"x": np.zeros(24), "y": np.zeros(24, F32)}, {"s0": 3}, "GY-INTERP-002"),
    ],
)
def test_arguments_of_kernels_are_checked(buffers, sizes, code):
    with pytest.raises(InterpreterError) as caught:
        run_kernel(parse_program(FUSED).nodes[0], buffers, sizes)
    assert caught.value.diagnostic.code == code


def test_a_lifetime_that_ends_too_early_shows():
    early = FUSED.replace(
        "life y 0 to 1\n  life z 1 to 2 reuses y", "life y 0 to 0\n  life z 1 to 2"
    )
    x = np.ones((2, 8), F32)
    (z,) = run_schedule(parse_program(early), [2, x])
    assert np.isnan(z).all()


def test_a_storage_that_is_too_small_shows():
    small = FUSED.replace("buffer y: f32[s0, 8]", "buffer y: f32[s0, 4]")
    small = small.replace("parameter y: f32[s0, 8]", "parameter y: f32[s0, 4]")
    with pytest.raises(InterpreterError, match="GY-INTERP-003"):
        run_schedule(parse_program(small), [2, np.ones((2, 8), F32)])


HOST = """host.program 1 @p
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
    conform x to f32[s0, 2] strides [s2, 1] on cpu mend nothing
    separate (w) from (x)
    assert_finite x from "x"
    assert (s0 < 9) "too long"
    note "a remark"
    pool = pool 64*s0 on cpu
    a = place pool at 8 as f32[s0, 2] strides [2, 1]
    extern test.zero () -> (ws)
    extern aten.mm.default (x, w) -> (a) out aten.mm.out names (out)
    extern test.split ([a, a], (s0), none, <dtype float32>) with {dim=1} -> ([p, q], (u0), none)
    r = view q as f32[s0] strides [2] offset 1
    copy r -> p
    with_device cpu
      profile "range"
        start test.double (p) -> (d)
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
    extern test.zero () -> (z)
    copy z -> kk
    loop (i) from (kk) while t next (j) -> (last)
      condition
        extern test.below (i, 4) -> (t)
      body
        extern test.next (i) -> (j)
    repeat s9 below 0 carry (c0) from (last) next (c0) -> (same)
    call sub (f, (s3)) -> (o0, o1)
    call_partition sub (f, 7) -> (o2, o3)
    free pool
    return f, g, [o1, (u0), none], o2, o3, (u1), same, a
  host.program 1 @sub
    parameter t tensor
    parameter n size
    do
      return t, n
"""


def run_the_host(flag, x=None, n=3):
    from gyrator_testing.interp.externs import DEFAULT

    def split(pair, size, nothing, dtype, dim):
        assert nothing is None
        assert (dtype.kind, dtype.value, dim) == ("dtype", "float32", 1)
        return [pair[0][:, 0].copy(), pair[1].copy()], size + 1, None

    externs = {
        **DEFAULT,
        "test.split": split,
        "test.double": lambda a: 2 * a,
        "test.zero": lambda: np.zeros((), np.int64),
        "test.below": lambda i, n: np.asarray(i < n),
        "test.next": lambda i: np.asarray(i + 1),
    }
    x = np.arange(6, dtype=F32).reshape(3, 2) if x is None else x
    weight = np.array([[0, 1], [1, 0]], F32)
    return x, run_host(parse_program(HOST), [n, x, np.asarray(flag)], {"weight": weight}, externs)


@pytest.mark.parametrize("flag", [True, False])
def test_host_programs(flag):
    x, (f, g, listed, o2, o3, u1, last, a) = run_the_host(flag)
    doubled = 2 * x[:, 0]
    np.testing.assert_array_equal(f, doubled if flag else doubled[[0, 0, 0]])
    np.testing.assert_array_equal(a, x[:, ::-1])
    assert g is not x
    np.testing.assert_array_equal(g, a)
    assert (listed, o3, u1, int(last)) == ([6, 4, None], 7, 0, 4)
    np.testing.assert_array_equal(o2, f)


def test_assertions_of_host_programs():
    with pytest.raises(AssertionError, match="x is not laid out"):
        run_the_host(True, np.zeros((3, 3), F32))
    with pytest.raises(AssertionError, match="NaN or infinity"):
        run_the_host(True, np.full((3, 2), np.nan, F32))
    with pytest.raises(RuntimeError, match="too long"):
        run_the_host(True, np.zeros((9, 2), F32), 9)


def test_every_instruction_has_a_meaning():
    """Those that `HOST` lacks are listed, so that a new one is not forgotten."""
    text = set()

    def walk(instructions):
        for i in instructions:
            text.add(type(i).__name__)
            for name in ("body", "then", "otherwise", "condition"):
                below = getattr(i, name, ())
                walk(below if isinstance(below, tuple) else ())

    walk(parse_program(HOST).instructions)
    # Launch and AllocatePool's tensors are in drawn programs, the rest is for devices.
    elsewhere = {"Launch", "TritonLaunch", "TmaDescriptor"}
    assert text | elsewhere == {c.__name__ for c in INSTRUCTIONS}


def test_user_kernels_are_functions():
    text = """host.program 1 @p
  parameter x tensor
  user_kernel mine (x, N)
    | pass
  do
    d = tma x [4] block [2] bytes 4
    triton mine grid [[2]] {x=d} constants {N=3}
    return x
"""

    def mine(x, N):
        x[...] = N

    x = np.zeros(4, F32)
    (y,) = run_host(parse_program(text), [x], externs={"mine": mine})
    assert y.tolist() == [3.0] * 4


def test_what_is_gone_is_gone():
    text = "host.program 1 @p\n  parameter x tensor\n  do\n    free x\n    return x\n"
    with pytest.raises(InterpreterError, match="GY-INTERP-001"):
        run_host(parse_program(text), [np.zeros(3, F32)])


def test_levels_are_told_apart():
    with pytest.raises(ParseError):
        parse_program("mlir.module 1 @p\n")
    with pytest.raises(TypeError, match="str is not a program"):
        level_of("x")
