"""Host programs as plans: lowered, stored, linked, and run on both runners."""

from typing import Any

import pytest
import torch

from gyrator_ir.host.parse import parse
from gyrator_ir.host.verify import verify
from gyrator_runtime import host
from gyrator_runtime.native import LoadedKernel
from gyrator_runtime.native.encode import encode
from gyrator_runtime.native.program import Call, PlanProgram
from gyrator_runtime.plan import stored
from gyrator_runtime.plan.link import Linker
from gyrator_runtime.plan.lower import lower

KERNEL = """  kernel k_axpy on cpu (i0 < s0) sizes (s0, s1)
    parameter p0: f32[s0] strides [1] on cpu
    parameter p1: f32[s0] strides [1] on cpu
    outer
      a = load p0[(s1 * i0) % s0]
      store p1[i0], a
"""


def linked(runner, kernels, text: str, constants=None, **fields: Any) -> tuple[Any, Linker]:
    """Return a program as a process links what another one stored."""
    loaded = {"k_axpy": LoadedKernel(kernels["gy_axpy"])}
    linker = Linker(runner, loaded, constants or {}, **fields)
    written = lower(verify(parse(f"host.program 1 @main\n{text}"))).text()
    assert stored.parse(written).text() == written
    return linker.link(stored.parse(written)), linker


def run(runner, kernels, text: str, *args: object, **fields: Any) -> Any:
    return linked(runner, kernels, text, **fields)[0](list(args))


def test_memory_of_a_program(runner, kernels):
    text = f"""  constant k: f32[2] strides [1] on cpu key k
  parameter x tensor
  parameter n size
{KERNEL}  do
    s0 = parameter n
    conform x to f32[s0] strides [1] on cpu mend nothing
    k = constant k
    m = pool 8*s0 on cpu
    a = place m at 0 as f32[s0] strides [1]
    b = place m at 4*s0 as f32[s0] strides [1]
    extern aten.zero_.default (a)
    extern aten.zero_.default (b)
    launch k_axpy (x, a) sizes [s0, 2]
    launch k_axpy (a, b) sizes [s0, 3]
    c = reuse b as f32[s0 // 2, 2] strides [2, 1]
    y = view c as f32[2, s0 // 2] strides [1, 2] offset 0
    free x
    free a
    free m
    return y, (s0), k
"""
    x, k = torch.randn(6), torch.randn(2)
    y, n, constant = run(runner, kernels, text, x, 6, constants={"k": k})
    assert torch.equal(y, (3 * (2 * x)).reshape(3, 2).t())
    assert n == 6
    assert constant is k
    with pytest.raises(AssertionError):
        run(runner, kernels, text, torch.randn(5), 6, constants={"k": k})


def test_sizes_of_a_program(runner, kernels):
    text = """  parameter x tensor
  parameter u tensor
  do
    s0 = dim x 0
    s1 = dim x 0 stride
    u0 = read u
    assert (u0 < 9) "too many"
    s2 = expr max(s0, u0, 4)
    s3 = expr where(s0 % 2 == 0, s0 // 2, -s0)
    s4 = expr where(u0 == 4 or 7 < u0 and s0 < 4, 8 // (u0 - 3), 0)
    s5 = expr s0**2 - u0 % 3
    return (s0), (s1), (s2), (min(s0, u0)), (s3), (s4), (s5)
"""
    for rows, u in ((6, 4), (3, 8), (5, 3), (6, 8)):
        result = run(runner, kernels, text, torch.zeros(rows, 5), torch.tensor(u))
        chosen = rows // 2 if rows % 2 == 0 else -rows
        guarded = 8 // (u - 3) if u == 4 or (u > 7 and rows < 4) else 0
        want = (rows, 5, max(rows, u, 4), min(rows, u), chosen, guarded, rows**2 - u % 3)
        assert result == want
    with pytest.raises(RuntimeError, match="too many"):
        run(runner, kernels, text, torch.zeros(1, 1), torch.tensor(9))


def test_branches_and_loops(runner, kernels):
    text = """  parameter x tensor
  parameter flag tensor
  parameter n size
  do
    s0 = parameter n
    branch flag then (a) else (b) -> (y)
      then
        extern aten.neg.default (x) -> (a)
      else
        extern aten.abs.default (x) -> (b)
    branch (s0 < 3) then (y) else (x) -> (w)
      then
      else
    extern aten.zeros.default ([]) with {dtype=<dtype int64>} -> (k)
    loop (i, v) from (k, w) while t next (j, u) -> (last, z)
      condition
        extern aten.lt.Scalar (i, (s0)) -> (t)
      body
        extern aten.add.Tensor (v, v) -> (u)
        extern aten.add.Scalar (i, 1) -> (j)
    return y, z, last
"""
    x = torch.randn(3)
    for flag in (True, False):
        for n in (0, 2, 4):
            y, z, last = run(runner, kernels, text, x, torch.tensor(flag), n)
            assert torch.equal(y, -x if flag else x.abs())
            assert torch.equal(z, (y if n < 3 else x) * 2**n)
            assert last == n


def test_subprograms(runner, kernels):
    text = f"""  parameter x tensor
  do
    call sub (x, 3) -> (a, m)
    call sub (a, m) -> (b, k)
    return a, b, k
  host.program 1 @sub
    parameter y tensor
    parameter n size
{KERNEL.replace("  ", "    ", 1).replace(chr(10) + "  ", chr(10) + "    ")}    do
      s0 = parameter n
      b = allocate f32[4] strides [1] on cpu
      copy y -> b
      launch k_axpy (y, b) sizes [4, s0]
      return b, (2*s0)
"""
    x = torch.randn(4)
    a, b, k = run(runner, kernels, text, x)
    assert torch.equal(a, 3 * x + x)
    assert torch.equal(b, 6 * a + a)
    assert k == 12


def test_partitions_may_be_replayed(runner, kernels):
    text = """  parameter x tensor
  do
    call_partition part (x) -> (a)
    call_partition part (a) -> (b)
    return a, b
  host.program 1 @part
    parameter y tensor
    capture cpu
    do
      b = allocate f32[4] strides [1] on cpu
      extern aten.sin.default (y) -> (b) out aten.sin.out names (out)
      return b
"""
    result, replayed = [], []

    def device_graph(name, plan):
        result.append(name)

        def replay(args):
            replayed.append(len(args))
            return plan(args)

        return replay

    x = torch.randn(4)
    for graph in (None, device_graph):
        a, b = run(runner, kernels, text, x, device_graph=graph)
        assert torch.equal(a, x.sin())
        assert torch.equal(b, x.sin().sin())
    assert (result, replayed) == (["part"], [1, 1])


def test_contexts(runner, kernels):
    text = """  parameter x tensor
  do
    s0 = dim x 0
    with_device cpu
      extern aten.neg.default (x) -> (a)
      s1 = expr 2*s0
    profile "label"
      free x
      extern aten.abs.default (a) -> (b)
      free a
    return b, (s1)
"""
    x = torch.randn(3)
    b, n = run(runner, kernels, text, x)
    assert torch.equal(b, x.abs())
    assert n == 6


def test_results_of_operators(runner, kernels):
    text = """  parameter x tensor
  do
    extern aten.topk.default (x, 2) -> (top, none)
    extern aten.split.Tensor (x, 2) -> ([a, b, c])
    extern aten.cat.default ([c, a]) -> (d)
    extern aten.sym_size.int (d, 0) -> ((u0))
    extern aten.full.default ([(u0), 2], inf) with {dtype=<dtype float64>} -> (f)
    return top, b, d, (2*u0), f
"""
    x = torch.tensor([3.0, 1.0, 2.0, 9.0, 5.0, 7.0])
    top, b, d, n, f = run(runner, kernels, text, x)
    assert top.tolist() == [9.0, 7.0]
    assert torch.equal(b, x[2:4])
    assert d.tolist() == [5.0, 7.0, 3.0, 1.0]
    assert n == 8
    assert torch.equal(f, torch.full((4, 2), float("inf"), dtype=torch.float64))


def test_timings_name_the_kernels(runner, kernels):
    text = f"""  parameter x tensor
{KERNEL}  do
    profile "p"
      launch k_axpy (x, x) sizes [4, 1]
    launch k_axpy (x, x) sizes [4, 1]
    return none
"""
    plan, linker = linked(runner, kernels, text, timed=True)
    plan([torch.ones(4)])
    assert [(name, row) for name, _, row in linker.launches] == [("k_axpy", 0), ("k_axpy", 0)]
    assert [p.timings()[0][0] for _, p, _ in linker.launches] == [1, 1]
    assert linker.launches[-1][1] is plan


def test_what_is_stored_is_data():
    plan = encode(PlanProgram(0, 1, (Call(0, print),)))
    with pytest.raises(TypeError, match="built-in function print"):
        stored.StoredPlan.of([plan])


def test_names_that_are_not_what_they_should_be():
    assert host.typed("float16") is torch.float16
    assert host.typed("strided") is torch.strided
    assert host.typed("channels_last") is torch.channels_last
    with pytest.raises(TypeError, match=r"torch\.randn is not a dtype"):
        host.typed("randn")
