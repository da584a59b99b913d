"""The vectorised interpreter against the one that goes point by point, and its refusals."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from gyrator_ir.loop.parse import parse
from gyrator_testing.feeds import assert_same, feed
from gyrator_testing.interp import body
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.externs import SEED
from gyrator_testing.interp.loop import run_loop
from gyrator_testing.strategies import ALL_OPS, loop_programs

sys.path.insert(0, str(Path(__file__).parent))
import naive  # beside this file

F32 = np.float32


def code(function, *args, **kwargs):
    with pytest.raises(InterpreterError) as caught:
        function(*args, **kwargs)
    return caught.value.diagnostic.code


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(loop_programs(ops=ALL_OPS))
def test_points_at_once_are_points_one_by_one(p):
    first = feed(p)
    second = first.copy()
    wanted = naive.run(p, first.inputs)
    assert_same(run_loop(p, second.inputs), wanted, "output")
    assert_same(second.inputs, first.inputs, "argument")


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_blocks_do_not_show(at_once, monkeypatch):
    p = parse(SOFTMAX)
    x = np.random.default_rng(0).standard_normal((9, 8)).astype(F32)
    whole = run_loop(p, [9, x])[0]
    monkeypatch.setattr(body, "POINTS_AT_ONCE", at_once)
    np.testing.assert_array_equal(run_loop(p, [9, x])[0], whole)


SOFTMAX = """loop.program 1 @softmax
  in n: size s0
  in x: f32[s0, 8] strides [8, 1] on cpu
  buffer m: f32[s0] strides [1] on cpu
  buffer t: f32[s0] strides [1] on cpu
  buffer y: f32[s0, 8] strides [8, 1] on cpu
  reduction op0 (i0 < s0) over (r0 < 8)
    a = load x[8*i0 + r0]
    m, t: f32 = reduce.online_softmax a
    store m[i0], m
    store t[i0], t
  pointwise op1 (i0 < s0, i1 < 8)
    a = load x[8*i0 + i1]
    m = load m[i0]
    t = load t[i0]
    b: f32 = sub a, m
    c: f32 = exp b
    d: f32 = div c, t
    store y[8*i0 + i1], d
  return y, (s0 + 1), 3, none
"""


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_softmax(rows):
    x = np.random.default_rng(1).standard_normal((rows, 8)).astype(F32)
    y, size, three, nothing = run_loop(parse(SOFTMAX), [rows, x])
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    assert (size, three, nothing) == (rows + 1, 3, None)


def one(statements, shape="8", strides="1", axes="i0 < 8"):
    lines = "".join(f"    {s}\n" for s in statements)
    return parse(
        "loop.program 1 @p\n"
        f"  in x: f32[{shape}] strides [{strides}] on cpu\n"
        "  in k: i64[8] strides [1] on cpu\n"
        f"  buffer y: f32[8] strides [1] on cpu\n  pointwise op0 ({axes})\n{lines}  return y\n"
    )


def test_a_strided_view_is_an_argument():
    p = one(["a = load x[3*i0 + 30*i1]", "store y[i0], a"], "8, 2", "3, 30", "i0 < 8, i1 < 1")
    base = np.arange(60, dtype=F32)
    x = base.reshape(2, 30)[:, :24:3].T
    assert run_loop(p, [x, np.zeros(8, np.int64)])[0].tolist() == list(range(0, 24, 3))


def test_mutation_is_seen_by_the_caller():
    p = one(["a = load x[i0]", "b: f32 = add a, a", "store x[i0], b", "store y[i0], a"])
    x = np.arange(8, dtype=F32)
    y = run_loop(p, [x, np.zeros(8, np.int64)])[0]
    assert x.tolist() == [2.0 * k for k in range(8)]
    assert y.tolist() == [float(k) for k in range(8)]


def test_what_is_not_written_is_poison():
    p = one(["a = load x[i0]", "store y[2*i0], a"], axes="i0 < 4")
    y = run_loop(p, [np.zeros(8, F32), np.zeros(8, np.int64)])[0]
    assert np.isnan(y[1::2]).all()
    assert (y[::2] == 0).all()


GATHER = ["k = load k[i0]", "t0 = bind k below 8{}", "a = load x[t0]", "store y[i0], a"]


def gather(flags, k):
    lines = [s.format(flags) for s in GATHER]
    return run_loop(one(lines), [np.arange(8, dtype=F32), np.array(k, np.int64)])[0].tolist()


def test_indices_from_the_end():
    assert gather(" wrap check", [0, -1, -8, 7, 1, 1, 2, 3]) == [0, 7, 0, 7, 1, 1, 2, 3]


@pytest.mark.parametrize("k", [8, -9, -1])
def test_checked_indices(k):
    flags = " check" if k == -1 else " wrap check"
    with pytest.raises(IndexError, match=r"index -?\d+ is out of bounds for size 8"):
        gather(flags, [0] * 7 + [k])


def test_a_promise_that_is_broken_is_an_error_of_the_program():
    with pytest.raises(InterpreterError) as caught:
        gather("", [0] * 7 + [8])
    assert caught.value.diagnostic.code == "GY-INTERP-003"


def test_masked_points_touch_nothing():
    lines = [
        "k = load k[i0]",
        "z: i64 = const 8",
        "m: bool = lt k, z",
        "t0 = bind k below 8 check if m",
        "i: i64 = index i0",
        "four: i64 = const 4",
        "low: bool = lt i, four",
        "a = load x[i0 + 4] if low",
        "store y[i0], a",
        "store y[i0 + 6], a if n",
    ]
    lines.insert(-1, "two: i64 = const 2")
    lines.insert(-1, "n: bool = lt i, two")
    x = np.arange(8, dtype=F32)
    y = run_loop(one(lines), [x, np.array([9] * 8, np.int64)])[0]
    assert y.tolist() == [4, 5, 6, 7, 0, 0, 4, 5]


@pytest.mark.parametrize("line", ["a = load x[i0 + k9]", "a = load x[i0 + 8*(i0 // 7)]"])
def test_addresses_stay_inside(line):
    lines = [line.replace("k9", "(i0 + 7) // 14 * 7"), "store y[i0], a"]
    arguments = [np.zeros(8, F32), np.zeros(8, np.int64)]
    assert code(run_loop, one(lines), arguments) == "GY-INTERP-003"


def test_arguments_are_checked():
    p = one(["a = load x[i0]", "store y[i0], a"])
    k = np.zeros(8, np.int64)
    good = np.zeros(8, F32)
    assert code(run_loop, p, [good]) == "GY-INTERP-002"
    assert code(run_loop, p, [good.astype(np.float64), k]) == "GY-INTERP-002"
    assert code(run_loop, p, [good[:7], k]) == "GY-INTERP-002"
    assert code(run_loop, p, [np.zeros(16, F32)[::2], k]) == "GY-INTERP-002"
    assert code(run_loop, p, ["x", k]) == "GY-INTERP-002"
    s = parse(SOFTMAX)
    assert code(run_loop, s, [4, np.zeros((5, 8), F32)]) == "GY-INTERP-002"
    assert code(run_loop, s, ["4", np.zeros((4, 8), F32)]) == "GY-INTERP-002"


CALLS = """loop.program 1 @calls
  in x: f32[2, 3] strides [3, 1] on cpu
  in flag: bool[] strides [] on cpu
  constant w: f32[3, 4] strides [1, 3] on cpu key weight
  buffer a: f32[2, 4] strides [4, 1] on cpu
  buffer b: f32[2, 4] strides [4, 1] on cpu
  buffer c: f32[2, 3] strides [3, 1] on cpu
  buffer seed: i64[1] strides [1] on cpu
  buffer far: f32[2, 3] strides [1, 2] on cuda:0
  buffer d: f32[u0, 3] strides [3, 1] on cpu
  buffer n: i64[] strides [] on cpu
  buffer e: f32[2, 3] strides [3, 1] on cpu
  buffer count: i64[] strides [] on cpu
  extern op0 aten.mm.default (x, w) -> (a) out aten.mm.out names (out)
  extern op1 aten.addmm.default (a, x, w) with {beta=2, alpha=0.5} -> (b)
  cond op2 flag then double else keep (x) -> (c)
  extern op3 gyrator.philox_seed () -> (seed)
  copy op4 c -> far
  extern op5 test.three () -> (n)
  read op6 n -> u0
  assert op7 (u0 < 9) "too many"
  pointwise op8 (i0 < u0, i1 < 3)
    v = load x[3*(i0 % 2) + i1]
    store d[3*i0 + i1], v
  extern op9 aten.copy_.default (x: f32[3] strides [1] offset 3, 2.0) mutates (x)
  while op10 below do step (n: i64[] strides []) invariants ((7)) -> (count)
  call op11 double (x) -> (e)
  return a, b, c, seed, far, d, e, count
  loop.program 1 @double
    in p: f32[2, 3] strides [3, 1] on cpu
    buffer q: f32[2, 3] strides [3, 1] on cpu
    pointwise op0 (i0 < 6)
      v = load p[i0]
      w: f32 = add v, v
      store q[i0], w
    return q
  loop.program 1 @keep
    in p: f32[2, 3] strides [3, 1] on cpu
    return p
  loop.program 1 @below
    in k: i64[] strides [] on cpu
    in limit: size s0
    buffer q: bool[] strides [] on cpu
    pointwise op0 ()
      v = load k[0]
      w: i64 = index s0
      t: bool = lt v, w
      store q[0], t
    return q
  loop.program 1 @step
    in k: i64[] strides [] on cpu
    in limit: size s0
    buffer q: i64[] strides [] on cpu
    pointwise op0 ()
      v = load k[0]
      one: i64 = const 1
      t: i64 = add v, one
      store q[0], t
    return q
"""


def run_calls(flag, n=3):
    from gyrator_testing.interp.externs import DEFAULT

    def fill(target, value):
        target[...] = value

    x = np.arange(6, dtype=F32).reshape(2, 3)
    w = np.arange(12, dtype=F32).reshape(4, 3).T
    externs = {**DEFAULT, "test.three": lambda: np.asarray(n), "aten.copy_.default": fill}
    found = run_loop(parse(CALLS), [x, np.asarray(flag)], {"weight": w}, externs)
    return x, w, found


@pytest.mark.parametrize("flag", [True, False])
def test_calls(flag):
    before = np.arange(6, dtype=F32).reshape(2, 3)
    x, w, (a, b, c, seed, far, d, e, count) = run_calls(flag)
    np.testing.assert_array_equal(a, before @ w)
    np.testing.assert_array_equal(b, 2 * a + 0.5 * (before @ w))
    np.testing.assert_array_equal(c, before * 2 if flag else before)
    assert seed.tolist() == [SEED]
    np.testing.assert_array_equal(far, c)
    assert far.strides == (4, 8)
    np.testing.assert_array_equal(d, before[[0, 1, 0]])
    assert x.tolist() == [[0, 1, 2], [2, 2, 2]]
    np.testing.assert_array_equal(e, 2 * x)
    assert count == 7


def test_assertions_on_sizes():
    with pytest.raises(RuntimeError, match="too many"):
        run_calls(True, 9)


def test_calls_that_go_wrong():
    p = parse(CALLS)
    given = [np.zeros((2, 3), F32), np.asarray(True)]
    assert code(run_loop, p, given) == "GY-INTERP-002"  # no constant
    w = {"weight": np.zeros((4, 3), F32).T}
    assert code(run_loop, p, given, w, {}) == "GY-INTERP-004"
    wrong = {"aten.mm.default": lambda a, b: np.zeros((3, 3), F32)}
    assert code(run_loop, p, given, w, wrong) == "GY-INTERP-005"


def test_bit_views():
    p = parse(
        "loop.program 1 @p\n  in x: f32[4] strides [1] on cpu\n"
        "  return x: i32[2] strides [2] offset 1, x: u8[4] strides [4]\n"
    )
    bits, low = run_loop(p, [np.array([1, 2, 3, 4], F32)])
    assert bits.tolist() == [0x40000000, 0x40800000]
    assert low.tolist() == [0, 0, 0, 0]
    outside = parse(
        "loop.program 1 @p\n  in x: f32[4] strides [1] on cpu\n  return x: i64[3] strides [1]\n"
    )
    assert code(run_loop, outside, [np.zeros(4, F32)]) == "GY-INTERP-003"


def test_a_name_without_a_value():
    p = one(["a = load x[i0]", "b: f32 = neg c", "store y[i0], b"])
    assert code(run_loop, p, [np.zeros(8, F32), np.zeros(8, np.int64)]) == "GY-INTERP-001"


def test_templates():
    heads = "x: f32[1, 2, 3, 4] strides [24, 12, 4, 1] offset 0"
    p = parse(
        "loop.program 1 @p\n  in x: f32[2, 3, 4] strides [12, 4, 1] on cpu\n"
        "  in m: bool[3, 3] strides [3, 1] on cpu\n"
        "  buffer y: f32[1, 2, 3, 4] strides [24, 12, 4, 1] on cpu\n"
        "  buffer z: f32[1, 2, 4] strides [8, 4, 1] on cpu\n"
        f"  template op0 attention ({heads}, {heads.replace('2, 3', '1, 3')}, "
        f"{heads.replace('2, 3', '1, 3')}, m: bool[1, 2, 3, 3] strides [0, 0, 3, 1]) -> (y, z) "
        "with {scale=0.5, causal=true}\n"
        "    fallback extern op0 aten.attend.default (x, m) -> (y, z)\n  return y, z\n"
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 4)).astype(F32)
    m = np.array([[True, True, True], [False, False, True], [True, True, False]])
    y, z = run_loop(p, [x, m])
    for head in range(2):
        for row in range(3):
            at = [c for c in range(row + 1) if m[row, c]]
            scores = np.array([x[head, row] @ x[0, c] * 0.5 for c in at])
            if not at:
                assert not y[0, head, row].any() and z[0, head, row] == -np.inf
                continue
            weights = np.exp(scores) / np.exp(scores).sum()
            np.testing.assert_allclose(y[0, head, row], weights @ x[0, at], rtol=1e-5)
            np.testing.assert_allclose(z[0, head, row], np.log(np.exp(scores).sum()), rtol=1e-5)
    assert (z[0, :, 3] == np.inf).all()
