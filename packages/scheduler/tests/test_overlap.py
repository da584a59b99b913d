"""Launches that start before the previous one ends."""

import pytest
from scheduler_programs import target

from gyrator_ir.host import nodes as h
from gyrator_ir.host.parse import parse
from gyrator_ir.host.verify import verify
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.types import DType
from gyrator_scheduler.host.overlap import overlapped

PRODUCT = """
  kernel product on cpu (i0 < 8) inner (r0 < 8)
    parameter p0: f32[8] strides [1] on cpu
    parameter p1: f32[8, 8] strides [8, 1] on cpu
    parameter p2: f32[8] strides [1] on cpu
    inner
      a = load p0[r0]
      b = load p1[8*i0 + r0]
      c: f32 = reduce.dot a, b
    outer
      store p2[i0], c
"""
PROGRAM = f"""
host.program 1 @p
  constant k: f32[8, 8] strides [8, 1] on cpu key weight
  parameter w tensor
  parameter x tensor
  parameter state tensor
{PRODUCT}
  kernel scale on cpu (i0 < 8)
    parameter p0: f32[8] strides [1] on cpu
    parameter p1: f32[8] strides [1] on cpu
    parameter p2: f32[8] strides [1] on cpu
    outer
      a = load p0[i0]
      b = load p1[i0]
      c: f32 = mul a, b
      store p2[i0], c
  do
    k = constant weight
    a = allocate f32[8] strides [1] on cpu
    b = allocate f32[8] strides [1] on cpu
    launch scale (x, state, a)
    launch product (a, w, b)
    free a
    c = allocate f32[8] strides [1] on cpu
    launch scale (b, x, c)
    {{between}}
    launch product (c, k, b)
    launch scale (b, state, state)
    return b
"""


def able(**capabilities: bool) -> dict[str, Target]:
    (cpu,) = target().values()
    bound = Capabilities(dtypes=frozenset(DType), overlap=True, **capabilities)
    return {"cpu": Target(device="cpu", arch=cpu.arch, kernel_backend="c++", capabilities=bound)}


def early(program: h.HostProgram) -> list[bool]:
    return [i.overlap for i in program.instructions if isinstance(i, h.Launch)]


def test_launches_beside_products_start_early_and_read_what_nothing_writes() -> None:
    program = parse(PROGRAM.format(between=""))
    result = verify(overlapped(program, able(), {"state"}))
    assert early(result) == [False, True, True, True, True]
    # `state` is written, and is the factor of one launch; products read matrices of the caller.
    assert {k.name: k.overlap for k in result.kernels} == {"product": ("p1",), "scale": ()}
    assert overlapped(program, target(), {"state"}) is program


def test_a_matrix_that_is_written_is_not_read_early() -> None:
    program = parse(PROGRAM.format(between="launch product (c, k, b)"))
    result = overlapped(program, able(), {"state", "w"})
    assert {k.name: k.overlap for k in result.kernels} == {"product": (), "scale": ()}
    assert overlapped(program, able(), {"state", "w", "k"}) is program


@pytest.mark.parametrize("between", ["copy c -> b", "extern aten.abs.default (c) -> (d)"])
def test_a_launch_after_other_work_starts_after_it(between: str) -> None:
    program = parse(PROGRAM.format(between=between))
    result = verify(overlapped(program, able(), {"state"}))
    assert early(result) == [False, True, True, False, True]


@pytest.mark.parametrize("least", [0, 1])
def test_a_launch_without_programs_precedes_none(least: int) -> None:
    text = f"""
host.program 1 @p
  fact s0 in [{least}, *]
  parameter n size
  parameter w tensor
  parameter v tensor
  parameter x tensor
{PRODUCT}
  kernel double on cpu (i0 < s0) sizes (s0)
    parameter p0: f32[s0] strides [1] on cpu
    parameter p1: f32[s0] strides [1] on cpu
    outer
      a = load p0[i0]
      b: f32 = add a, a
      store p1[i0], b
  do
    s0 = parameter n
    y = allocate f32[s0] strides [1] on cpu
    launch double (v, y) sizes [s0]
    a = allocate f32[8] strides [1] on cpu
    launch product (x, w, a)
    b = allocate f32[8] strides [1] on cpu
    launch product (a, w, b)
    return b, y
"""
    result = verify(overlapped(parse(text), able(), ()))
    assert early(result) == [False, least > 0, True]


def test_few_products_do_not_pay_for_the_waits_of_others() -> None:
    more = "\n    ".join(["launch scale (c, x, b)", "launch scale (b, x, c)"] * 3)
    program = parse(PROGRAM.format(between=more))
    assert overlapped(program, able(), {"state"}) is program
    fewer = parse(PROGRAM.format(between="launch scale (c, x, b)"))
    assert early(overlapped(fewer, able(), {"state"})) == [False] + [True] * 5


@pytest.mark.parametrize(("address", "product"), [("r0", True), ("8*i0 + r0", False)])
def test_a_product_has_a_factor_that_points_share(address: str, product: bool) -> None:
    # Otherwise it is a sum of products along an axis, such as in the gradient of a batch norm.
    text = f"""
host.program 1 @p
  parameter w tensor
  parameter x tensor
  kernel sums on cpu (i0 < 8) inner (r0 < 8)
    parameter p0: f32[8, 8] strides [8, 1] on cpu
    parameter p1: f32[8] strides [1] on cpu
    parameter p2: f32[8, 8] strides [8, 1] on cpu
    parameter p3: f32[8] strides [1] on cpu
    inner
      a = load p0[{address}]
      mean = load p1[i0]
      b = load p2[8*i0 + r0]
      c: f32 = sub b, mean
      d: f32 = mul a, a
      e: f32 = reduce.dot d, c
    outer
      store p3[i0], e
  do
    a = allocate f32[8] strides [1] on cpu
    launch sums (x, x, w, a)
    b = allocate f32[8] strides [1] on cpu
    launch sums (x, a, w, b)
    return b
"""
    assert early(overlapped(parse(text), able(), ())) == [False, product]


def test_kernels_of_a_launch_read_what_no_member_writes() -> None:
    member = PRODUCT.replace("product", "k0").strip().replace("\n", "\n  ")
    text = f"""
host.program 1 @p
  parameter w tensor
  parameter v tensor
  parameter x tensor
  kernel both on cpu together (k0, k0)
    {member}
  do
    a = allocate f32[8] strides [1] on cpu
    b = allocate f32[8] strides [1] on cpu
    launch both (x, w, a, x, v, b)
    c = allocate f32[8] strides [1] on cpu
    d = allocate f32[8] strides [1] on cpu
    launch both (a, w, c, b, v, d)
    return c, d
"""
    (group,) = verify(overlapped(parse(text), able(), ())).kernels
    assert group.kernels[0].overlap == ("p1",)
    (group,) = overlapped(parse(text), able(), {"v"}).kernels
    assert group.kernels[0].overlap == ()
