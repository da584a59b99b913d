"""Every instruction of the Wrapper IR in every host language, and what others' FX wrappers lack."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from host_forms import Forms

from gyrator_ir.host import nodes as h
from gyrator_ir.host.parse import parse
from gyrator_ir.host.walk import programs, walk
from gyrator_runtime.cache import Cache

F32 = np.float32
X = np.random.default_rng(0).standard_normal((4, 3)).astype(F32)
TRUE, FALSE = np.asarray(True), np.asarray(False)
HEAD = "host.program 1 @main\n"
TENSORS = HEAD + "  parameter x tensor\n  parameter n size\n  parameter flag tensor\n  do\n"


@pytest.fixture(scope="module")
def forms(cache_root: Any) -> Forms:
    """The loaders of all host languages."""

    def mine(x: np.ndarray, N: int, other: np.ndarray | None = None) -> None:
        x += N

    return Forms(Cache(cache_root), {"mine": mine})


@pytest.fixture(scope="module")
def plain(cache_root: Any) -> Forms:
    """The loaders without users' kernels: FX graphs run by their own code."""
    return Forms(Cache(cache_root))


@pytest.fixture(scope="module", autouse=True)
def ops() -> Iterator[None]:
    """Ops for the programs of this file."""
    lib = torch.library.Library("hosttest", "DEF")
    lib.define("parts(Tensor[] xs, SymInt n, Tensor? t, *, int dim) -> (Tensor[], SymInt, Tensor)")
    lib.impl(
        "parts",
        lambda xs, n, t, *, dim: ([x.sum(dim) for x in xs], n + 1, xs[0].sum()),
        "CompositeExplicitAutograd",
    )
    lib.define("scaled(Tensor x, Scalar by, *, Scalar? more=None) -> (Tensor, Tensor[])")
    lib.impl(
        "scaled",
        lambda x, by, *, more=None: (x * by, [x + (more or 0), x.clone()]),
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


@pytest.fixture
def group() -> Iterator[str]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


KERNEL = """  kernel {name} on cpu (i0 < s0) sizes (s0)
    parameter p0: f32[s0] strides [1] on cpu
    parameter p1: f32[s0] strides [1] on cpu
    outer
      a = load p0[i0]
      b: f32 = add a, a
      store p1[i0], b
"""

PROGRAMS: dict[str, str] = {
    # Sizes, checks, memory: symbols of all kinds, pools, views across element types, reuse.
    "memory": """host.program 1 @main
  constant w: f32[2] strides [1] on cpu key layer.weight
  parameter x tensor
  parameter n size
  parameter flag tensor
  do
    note "sizes, then memory"
    s0 = parameter n
    s1 = dim x 1
    s2 = dim x 0 stride
    s3 = expr min(s0*s1 + 1, 7) + s0 // s1 + s2 % 5 - max(s0, s1, 4)
    s4 = expr where(s0 < 2, 1, s1 // (s0 - 1))
    w = constant layer.weight
    assert_layout x [s0, s1] strides [s2, 1] from "x"
    assert_aligned x 4
    assert_finite x from "x"
    assert_finite flag
    assert (s0 < 9 and s1 != 7) "too long"
    a = allocate f32[s0, s1] strides [s1, 1] on cpu
    copy x -> a
    pool = pool 64*s0 + 64 on cpu
    b = place pool at 64 as f32[s0, s1] strides [1, s0]
    copy a -> b
    ws = workspace 16 on cpu zeroed
    ws2 = workspace 4*s0 on cpu
    u0 = read flag
    v = view a as f32[s1] strides [1] offset s0*s1 - s1
    v2 = view v as i32[1] strides [1] offset 1
    c = view b as f32[s0] strides [1] offset 0
    d = allocate i64[s0] strides [1] on cpu
    free ws2
    e = reuse d as f32[s0] strides [2]
    copy c -> e
    k = reuse a as f32[2] strides [1]
    return (s3), (s4), (2*s0), none, x, b, ws, v, v2, c, [e, (u0), [k]], w
""",
    # The dispatcher: out=, lists, optionals, results that are lists, sizes or nothing, mutation,
    # scalars and types; a user's kernel on a descriptor.
    "calls": """host.program 1 @main
  parameter x tensor
  parameter n size
  parameter flag tensor
  user_kernel mine (x, N)
    | @triton.jit
    | def mine(x, N):
    |     pass
  do
    s0 = parameter n
    s1 = dim x 1
    a = allocate f32[s0, s0] strides [s0, 1] on cpu
    y = allocate f32[s0, s1] strides [s1, 1] on cpu
    copy x -> y
    t = view y as f32[s1, s0] strides [1, s1] offset 0
    extern aten.mm.default (y, t) -> (a) out aten.mm.out names (out)
    extern hosttest.parts.default ([y, x], (s0), none) with {dim=1} -> ([left, right], (u0), none)
    extern hosttest.scaled.default (y, 2.5) with {more=3} -> (scaled, [more, same])
    extern hosttest.scaled.default (y, (s0)) -> (whole, none)
    extern hosttest.add_one_.default (y)
    extern hosttest.two.default (y) -> (one, none)
    extern hosttest.two.default (y) -> (none, two)
    o1 = allocate f32[s0, s1] strides [s1, 1] on cpu
    o2 = allocate f32[s0, s1] strides [s1, 1] on cpu
    extern hosttest.two.default (y) -> (o1, o2) out hosttest.two.out names (a, b)
    extern aten.full.default ([(u0), 2], 1.5) with {dtype=<dtype float64>} -> (full)
    extern aten.argmax.default (y, 1) -> (t0)
    extern aten.index.Tensor (y, [none, t0]) -> (picked)
    d = tma full [u0, 2] block [2, 2] bytes 8 stable
    triton mine grid [[s0]] {x=d} constants {N=3}
    return a, left, [right, (u0), none], y, one, two, o1, o2, full, scaled, more, same, whole, picked
""",
    # Streams, guards, ranges, branches, loops.
    "structure": """host.program 1 @main
  parameter x tensor
  parameter n size
  parameter flag tensor
  do
    s0 = parameter n
    st = stream on cpu
    st2 = stream on cpu new
    ev = event on cpu
    record ev on st
    wait ev on st2
    with_device cpu
      with_stream st
        profile "part"
          extern aten.add.Scalar (x, 1) -> (y)
          u0 = read flag
          extern aten.add.Scalar (y, 2) -> (gone)
          free gone
    extern aten.add.Scalar (y, (u0)) -> (z)
    branch flag then (a) else (x) -> (b)
      then
        a = view x as f32[s0] strides [1] offset 0
        extern hosttest.add_one_.default (x)
      else
    branch (s0 < 3 or s0 == 4) then (b) else (x) -> (c)
      then
        profile "inner"
          copy z -> z
      else
    k = allocate i64[] strides [] on cpu
    extern aten.sum.default (flag) -> (zero)
    copy zero -> k
    extern aten.add.Scalar (x, 0) -> (first)
    loop (i, v) from (k, first) while test next (j, w) -> (last, value)
      condition
        extern aten.lt.Scalar (i, (s0 + 2)) -> (test)
      body
        extern aten.add.Scalar (i, 1) -> (j)
        extern aten.mul.Tensor (v, x) -> (w)
    return z, (u0), b, c, last, value
""",
    # Kernels in programs and subprograms that are called twice.
    "launches": f"""host.program 1 @main
  constant w: f32[8] strides [1] on cpu key layer.weight
  parameter x tensor
  parameter n size
{KERNEL.format(name="k0")}  do
    s0 = parameter n
    st = stream on cpu
    y = allocate f32[s0] strides [1] on cpu
    launch k0 (x, y) sizes [s0]
    z = reuse y as f32[s0] strides [1]
    launch k0 (z, z) sizes [s0] stream st
    w0 = constant layer.weight
    part = view w0 as f32[2] strides [1] offset 3
    pool = pool 64 on cpu
    last = place pool at 16 as f32[2] strides [1]
    launch k0 (part, last) sizes [2]
    call sub (z, (2*s0)) -> (o0, o1)
    call_partition sub (o0, 7) -> (o2, o3)
    return z, (s0), none, part, last, o1, o2, o3
  host.program 1 @sub
    parameter t tensor
    parameter n size
{"".join(f"  {line}" + chr(10) for line in KERNEL.format(name="k1").splitlines())}    do
      s0 = parameter n
      launch k1 (t, t) sizes [2]
      call deep (t) -> (u)
      return u, (s0 + 1)
    host.program 1 @deep
      parameter t tensor
      do
        v = view t as f32[2] strides [1] offset 0
        return v
""",
}  # fmt: skip

COLLECTIVES = (
    HEAD
    + """  parameter x tensor
  do
    start _c10d_functional.all_reduce.default (x, "sum", "GROUP") -> (a)
    profile "between"
      extern aten.add.Scalar (x, 1) -> (y)
    finish a
    start _c10d_functional.all_gather_into_tensor_coalesced.default ([a, y], 1, "GROUP") -> (b, c)
    finish b
    finish c
    return a, y, b, c
"""
)
WEIGHT = {"layer.weight": np.arange(1, 9, dtype=F32)}


def test_the_programs_here_have_every_instruction() -> None:
    texts = [*PROGRAMS.values(), COLLECTIVES]
    found = {type(i) for text in texts for p in programs(parse(text)) for i in walk(p.instructions)}
    assert found == set(h.INSTRUCTIONS)
    assert len(h.INSTRUCTIONS) == 36


@pytest.mark.parametrize("flag", [TRUE, FALSE], ids=str)
@pytest.mark.parametrize("rows", [4, 1])
@pytest.mark.parametrize("name", ["memory", "calls", "structure"])
def test_every_instruction(forms: Forms, name: str, rows: int, flag: np.ndarray) -> None:
    weight = {"layer.weight": np.asarray([1, 2], F32)}
    forms.check(PROGRAMS[name], [X[:rows], rows, flag], weight)


@pytest.mark.parametrize("n", [3, 8])
def test_launches(plain: Forms, n: int) -> None:
    plain.check(PROGRAMS["launches"], [np.arange(8, dtype=F32)[:n], n], WEIGHT)


def test_collectives(plain: Forms, group: str) -> None:
    plain.check(COLLECTIVES.replace("GROUP", group), [X])
