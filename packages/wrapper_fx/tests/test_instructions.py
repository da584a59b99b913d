"""Every instruction in a program that runs, against the interpreter."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
import torch
from fx_programs import check

from gyrator_ir.host import nodes as h
from gyrator_ir.host.parse import parse as parse_program
from gyrator_ir.host.walk import walk
from gyrator_testing import host_cases
from gyrator_wrapper_fx.stage import FxWrapper, to_graph

F32 = np.float32


@pytest.fixture(autouse=True, scope="module")
def library() -> Iterator[None]:
    """Ops for the programs of this file."""
    lib = torch.library.Library("fxtest", "DEF")
    lib.define("split(Tensor[] xs, SymInt n, Tensor? t, *, int dim) -> (Tensor[], SymInt, Tensor)")
    lib.impl(
        "split",
        lambda xs, n, t, *, dim: ([xs[0][:, 0].clone(), xs[1].clone()], n + 1, xs[0].sum()),
        "CompositeExplicitAutograd",
    )
    lib.define("add_one_(Tensor(a!) x) -> ()")
    lib.impl("add_one_", lambda x: (x.add_(1), None)[1], "CompositeExplicitAutograd")
    lib.define("two(Tensor x) -> (Tensor, Tensor)")
    lib.impl("two", lambda x: (x + 1, x * 2), "CompositeExplicitAutograd")
    lib.define("two.out(Tensor x, *, Tensor(a!) a, Tensor(b!) b) -> (Tensor(a!), Tensor(b!))")

    def two_out(x: torch.Tensor, *, a: torch.Tensor, b: torch.Tensor) -> object:
        return a.copy_(x + 1), b.copy_(x * 2)

    lib.impl("two.out", two_out, "CompositeExplicitAutograd")
    yield
    lib._destroy()


def below(a, n):
    return np.asarray(a < n)


EXTERNS = {
    "fxtest.split.default": lambda xs, n, t, dim: (
        [xs[0][:, 0].copy(), xs[1].copy()],
        n + 1,
        np.asarray(xs[0].sum(), F32),
    ),
    "fxtest.add_one_.default": lambda x: x.__iadd__(1) is None,
    "fxtest.two.default": lambda x: (x + F32(1), x * F32(2)),
    "aten.lt.Scalar": below,
    "aten.add.Scalar": lambda a, n: np.asarray(a + a.dtype.type(n)),
    "aten.mul.Tensor": lambda a, b: np.asarray(a * b),
    "aten.sum.default": lambda a: np.asarray(a.sum(dtype=a.dtype)),
    "aten.full.default": lambda size, value, dtype=None: np.full(size, value, F32),
    "_c10d_functional.all_reduce.default": lambda a, op, group: a.copy(),
    "aten.clone.default": lambda a: a.copy(),
}

HEAD = "host.program 1 @main\n"
TENSORS = HEAD + "  parameter x tensor\n  parameter n size\n  parameter flag tensor\n  do\n"
SIZES = "    s0 = parameter n\n    s1 = dim x 1\n    s2 = dim x 0 stride\n"
X = np.arange(12, dtype=F32).reshape(4, 3)
TRUE, FALSE = np.asarray(True), np.asarray(False)
COLUMNS = np.asfortranarray(X)

PROGRAMS: dict[str, str] = {
    "symbols": SIZES
    + "    s3 = expr min(s0*s1 + 1, 7) + s0 // s1 + s2 % 5 - max(s0, s1, 4)\n"
    + "    s4 = expr where(s0 < 2, 1, s1 // (s0 - 1))\n"
    + '    note "sizes"\n    return (s3), (s4), (2*s0), none, x\n',
    "checks": SIZES
    + "    conform x to f32[s0, s1] strides [s2, s1 - s1 + where(s2 == 1, s0, 1)] on cpu"
    + " mend nothing\n"
    + '    assert_finite x from "x"\n    assert_finite flag\n'
    + '    assert (s0 < 9 and s1 != 7) "too long"\n'
    + "    return x\n",
    "memory": SIZES
    + "    a = allocate f32[s0, s1] strides [s1, 1] on cpu\n    copy x -> a\n"
    + "    pool = pool 64*s0 + 64 on cpu\n"
    + "    b = place pool at 64 as f32[s0, s1] strides [1, s0]\n    copy a -> b\n"
    + "    w2 = pool 4*s0 on cpu\n    u0 = read flag\n"
    + "    v = view a as f32[s1] strides [1] offset s0*s1 - s1\n"
    + "    v2 = view v as i32[1] strides [1] offset 1\n"
    + "    c = view b as f32[s0] strides [1] offset 0\n"
    + "    d = allocate i64[s0] strides [1] on cpu\n    free w2\n"
    + "    e = reuse d as f32[s0] strides [2]\n    copy c -> e\n"
    + "    k = reuse a as f32[2] strides [1]\n"
    + "    r = view x as u8[3] strides [2] offset 1\n"
    + "    return b, v, v2, c, e, (u0), k, r\n",
    "externs": SIZES
    + "    a = allocate f32[s0, s0] strides [s0, 1] on cpu\n"
    + "    y = allocate f32[s0, s1] strides [s1, 1] on cpu\n    copy x -> y\n"
    + "    t = view y as f32[s1, s0] strides [1, s1] offset 0\n"
    + "    extern aten.mm.default (y, t) -> (a) out aten.mm.out names (out)\n"
    + "    extern fxtest.split.default ([y, x], (s0), none) with {dim=1} -> ([p, q], (u0), none)\n"
    + "    extern fxtest.add_one_.default (y)\n"
    + "    extern fxtest.two.default (y) -> (one, none)\n"
    + "    extern fxtest.two.default (y) -> (none, two)\n"
    + "    o1 = allocate f32[s0, s1] strides [s1, 1] on cpu\n"
    + "    o2 = allocate f32[s0, s1] strides [s1, 1] on cpu\n"
    + "    extern fxtest.two.default (y) -> (o1, o2) out fxtest.two.out names (a, b)\n"
    + "    extern aten.full.default ([(u0), 2], 1.5) with {dtype=<dtype float32>} -> (full)\n"
    + "    return a, p, [q, (u0), none], y, one, two, o1, o2, full\n",
    "scopes": "    with_device cpu\n      profile \"part\"\n"
    + "        extern aten.add.Scalar (x, 1) -> (y)\n        u0 = read flag\n"
    + "        extern aten.add.Scalar (y, 2) -> (gone)\n        free gone\n"
    + "    extern aten.add.Scalar (y, (u0)) -> (z)\n    return z, (u0)\n",
    "branches": SIZES
    + "    u0 = read flag\n"
    + "    branch flag then (a) else (x) -> (b)\n      then\n"
    + "        a = view x as f32[s0] strides [s2] offset 0\n"
    + "        extern fxtest.add_one_.default (x)\n      else\n"
    + "    branch (s0 < 3 or s1 == 3) then (b) else (x) -> (c)\n      then\n"
    + "        profile \"inner\"\n          copy x -> x\n      else\n"
    + "    return b, c\n",
    "loops": "    s0 = parameter n\n    k = allocate i64[] strides [] on cpu\n"
    + "    extern aten.add.Scalar (x, 0) -> (y)\n    extern aten.sum.default (flag) -> (zero)\n"
    + "    copy zero -> k\n"
    + "    loop (i, v) from (k, y) while t next (j, w) -> (last, value)\n"
    + "      condition\n        extern aten.lt.Scalar (i, (s0 + 2)) -> (t)\n"
    + "      body\n        extern aten.add.Scalar (i, 1) -> (j)\n"
    + "        extern aten.mul.Tensor (v, x) -> (w)\n"
    + "    return last, value\n",
}  # fmt: skip


def program(name: str) -> str:
    return TENSORS + PROGRAMS[name]


@pytest.mark.parametrize("flag", [TRUE, FALSE], ids=str)
@pytest.mark.parametrize("x", [X, X[:1], COLUMNS], ids=["rows", "one", "columns"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_each_family(name: str, x: np.ndarray, flag: np.ndarray) -> None:
    """Symbols, checks, memory, externs, streams, branches, loops."""
    check(program(name), [x, x.shape[0], flag], externs=EXTERNS)


LAUNCHES = """host.program 1 @main
  constant w: f32[8] strides [1] on cpu key layer.weight
  parameter x tensor
  parameter n size
  origin 0 %add aten.add.Tensor
  kernel k0 on cpu (i0 < s0) sizes (s0)
    parameter p0: f32[s0] strides [1] on cpu
    parameter p1: f32[s0] strides [1] on cpu
    outer
      a = load p0[i0]
      b: f32 = add a, a
      store p1[i0], b
  do
    s0 = parameter n
    y = allocate f32[s0] strides [1] on cpu
    launch k0 (x, y) sizes [s0]
    z = reuse y as f32[s0] strides [1]
    launch k0 (z, z) sizes [s0]
    w0 = constant layer.weight
    w1 = constant layer.weight
    launch k0 (w0, x) sizes [s0]
    with_device cpu
      part = view w1 as f32[2] strides [1] offset 3
      pool = pool 64 on cpu
      last = place pool at 16 as f32[2] strides [1]
      launch k0 (part, last) sizes [2]
    return z, (s0), none, w0, part, last
"""

CALLS = """host.program 1 @main
  parameter x tensor
  parameter n size
  do
    s0 = parameter n
    call sub (x, (2*s0)) -> (o0, o1)
    call sub (o0, 7) -> (o2, o3)
    call_partition part (o2) -> (o4)
    return o1, o3, o4, (s0)
  host.program 1 @sub
    parameter t tensor
    parameter n size
    kernel k1 on cpu (i0 < 6)
      parameter p0: f32[6] strides [1] on cpu
      outer
        a = load p0[i0]
        b: f32 = mul a, a
        store p0[i0], b
    do
      s0 = parameter n
      launch k1 (t)
      call deep (t) -> (u)
      return u, (s0 + 1)
    host.program 1 @deep
      parameter t tensor
      do
        v = view t as f32[6] strides [1] offset 0
        return v
  host.program 1 @part
    parameter t tensor
    capture cpu mutates (0)
    kernel k2 on cpu (i0 < 6)
      parameter p0: f32[6] strides [1] on cpu
      outer
        a = load p0[i0]
        b: f32 = add a, a
        store p0[i0], b
    do
      launch k2 (t)
      return t
"""


@pytest.mark.parametrize("n", [0, 1, 8])
def test_launches_constants_and_reuse(n: int) -> None:
    """Kernels write in place: allocated memory, reused memory, an input, a view, a pool."""
    x = np.arange(8, dtype=F32)[:n]
    constants = {"layer.weight": np.arange(1, 9, dtype=F32)}
    check(LAUNCHES, [x, n], constants)


def test_subprograms_that_are_called_twice() -> None:
    """A repeated region is one graph module, called twice; what it changes shows outside."""
    check(CALLS, [np.ones(6, F32) * 2, 3])
    gm = to_graph(parse_program(CALLS))
    calls = [n for n in gm.graph.nodes if n.op == "call_module"]
    notes = [(n.target, n.meta.get("capture")) for n in calls]
    assert notes == [("sub", None), ("sub", None), ("part", "cpu")]


@pytest.mark.parametrize(
    "dtype",
    [np.float64, np.float16, np.int8, np.uint16, np.int64, np.bool_, np.complex64,
     ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn],
    ids=str,
)  # fmt: skip
def test_dtypes(dtype: type) -> None:
    """Allocation, reuse, views and copies keep every element type."""
    name = {
        "float64": "f64", "float16": "f16", "int8": "i8", "uint16": "u16", "int64": "i64",
        "bool": "bool", "complex64": "c64", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3",
    }[np.dtype(dtype).name]  # fmt: skip
    text = f"""host.program 1 @main
  parameter x tensor
  do
    s0 = dim x 0
    a = allocate {name}[s0] strides [2] on cpu
    copy x -> a
    pool = pool 128 on cpu
    b = place pool at 32 as {name}[s0] strides [1]
    copy a -> b
    c = view a as {name}[2] strides [2] offset 2
    d = allocate f64[s0] strides [1] on cpu
    e = reuse d as {name}[s0] strides [1]
    copy b -> e
    return b, c, e
"""
    # The interpreter takes no arguments of 8-bit floats: the copy makes them.
    inputs = F32 if name == "f8e4m3" else dtype
    x = np.random.default_rng(0).integers(0, 2, 5).astype(inputs)
    check(text, [x])


def test_every_instruction_is_translated_and_run() -> None:
    """A new class needs a program here or in another file of these tests."""
    shared = [host_cases.HEAD + body for body, _ in host_cases.REFUSED_ELSEWHERE.values()]
    texts = [program(name) for name in PROGRAMS] + [LAUNCHES, CALLS, *shared]
    actual = {type(i) for text in texts for i in walk(parse_program(text).instructions)}
    elsewhere = {h.TmaDescriptor, h.TritonLaunch, h.CollectiveStart, h.CollectiveFinish}
    assert actual | elsewhere == set(h.INSTRUCTIONS)


@pytest.mark.parametrize("name", [*PROGRAMS, "launches", "calls"])
def test_the_text_is_deterministic(name: str) -> None:
    """The same program gives the same bytes."""
    other = {"launches": LAUNCHES, "calls": CALLS}
    parsed = parse_program(other[name] if name in other else program(name))
    first, second = FxWrapper().emit(parsed), FxWrapper().emit(parsed)
    assert first == second
    counts = {"launches": ("k0",), "calls": ("k1", "k2")}.get(name, ())
    assert first.kernels == counts
    assert first.constants == (("layer.weight",) if name == "launches" else ())
