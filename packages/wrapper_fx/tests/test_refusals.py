"""What FX wrappers elsewhere refuse, drop or get wrong, each shown to work here.

Each program runs as a graph, as text, in the FX interpreter, and after two kinds of second trace.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fx_programs import check, dispatched, forms, library, tensor

from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.host.parse import parse as parse_program
from gyrator_ir.host.verify import verify
from gyrator_testing.host_cases import CHECKS, HEAD, REFUSED_ELSEWHERE, X
from gyrator_testing.interp.host import run_host
from gyrator_wrapper_fx import ops
from gyrator_wrapper_fx.stage import to_graph

F32 = np.float32
ONES = torch.ops.aten.ones.default


@pytest.fixture(autouse=True, scope="module")
def ops_of_the_programs() -> Iterator[None]:
    """The ops that the shared programs call."""
    lib = library()
    yield
    lib._destroy()


@pytest.mark.parametrize("name", REFUSED_ELSEWHERE)
def test_what_others_refuse(name: str) -> None:
    body, x = REFUSED_ELSEWHERE[name]
    check(HEAD + body, [x], externs=dispatched())


@pytest.mark.parametrize("index", [-3, -1, 0, 2])
def test_selection_at_an_index_that_is_data(index: int) -> None:
    text = """host.program 1 @main
  parameter x tensor
  parameter i tensor
  do
    s0 = dim x 0
    s1 = dim x 1
    u0 = read i
    u1 = expr where(u0 < 0, u0 + s0, u0)
    v = view x as f32[s1] strides [1] offset s1*u1
    start = view x as f32[max(s0 - u1, 0), s1] strides [s1, 1] offset s1*u1
    return v, start, (u1)
"""
    check(text, [X, np.asarray(index)])


def test_results_that_alias_inputs_and_each_other() -> None:
    text = (
        HEAD
        + """    v = view x as f32[3] strides [1] offset 3
    w = view v as f32[2] strides [1] offset 1
    return x, v, w, x
"""
    )
    check(text, [X])
    x = tensor(X)
    a, v, w, b = to_graph(parse_program(text))(x)
    assert a is b is x
    w.fill_(7)
    assert (x[1, 1:] == 7).all() and (v[1:] == 7).all()


@pytest.fixture
def group() -> Iterator[str]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


def test_collectives(group: str) -> None:
    text = (
        HEAD
        + f"""    start _c10d_functional.all_reduce.default (x, "sum", "{group}") -> (a)
    profile "between"
      extern aten.add.Scalar (x, 1) -> (y)
    finish a
    start _c10d_functional.all_gather_into_tensor_coalesced.default ([a, y], 1, "{group}") -> (b, c)
    finish b
    finish c
    return a, y, b, c
"""
    )
    externs = {
        "_c10d_functional.all_reduce.default": lambda a, op, g: a.copy(),
        "aten.add.Scalar": lambda a, n: a + F32(n),
        "_c10d_functional.all_gather_into_tensor_coalesced.default": lambda many, n, g: [
            a.copy() for a in many
        ],
    }
    check(text, [X], externs=externs)


@pytest.mark.parametrize("name", CHECKS)
def test_asserts_raise_in_every_form(name: str) -> None:
    """No assert is dropped: not by code generation, by dead code elimination, or by a trace."""
    case = CHECKS[name]
    program = verify(parse_program(HEAD + case.lines + "    return none\n"))
    if case.interpreted:
        with pytest.raises(case.error):
            run_host(program, [-np.abs(X)], externs=dispatched())
    for function in forms(program, {}, tracing="").values():
        with pytest.raises(case.error) as error:
            function([tensor(-np.abs(X))])
        assert case.message.rpartition(": ")[2] in str(error.value)


def test_asserts_survive_make_fx() -> None:
    """Checks of data and of layouts are nodes of the second graph."""
    from torch.fx.experimental.proxy_tensor import make_fx

    text = (
        HEAD
        + """    conform x to f32[4, 3] strides [3, 1] on cpu mend nothing
    assert_finite x
    return none
"""
    )
    traced = make_fx(to_graph(parse_program(text)), tracing_mode="fake")(torch.ones(4, 3))
    assert [n.target for n in traced.graph.find_nodes(op="call_function", target=ops.assert_no_nan)]
    with pytest.raises(AssertionError, match="1 NaN and 11 infinite"):
        traced(torch.full((4, 3), torch.inf).index_fill_(0, torch.tensor([], dtype=torch.long), 0)
               .view(-1).put_(torch.tensor(0), torch.tensor(torch.nan)).view(4, 3))  # fmt: skip


def test_devices_keep_their_ordinals() -> None:
    text = (
        HEAD
        + """    a = allocate f32[2] strides [1] on cuda:1
    pool = pool 64 on cuda:1
    with_device cuda:1
      extern aten.ones.default ([2]) with {device=<device "cuda:1">} -> (o)
    return a
"""
    )
    gm = to_graph(parse_program(text))
    second = torch.device("cuda:1")
    nodes: dict[str, Any] = {n.name: n for n in gm.graph.nodes}
    assert nodes["a"].kwargs["device"] == second
    assert nodes["pool"].kwargs["device"] == second
    assert nodes["within_device"].args[0] == second
    assert gm.body.graph.find_nodes(op="call_function", target=ONES)[0].kwargs["device"] == second


def test_launches_say_what_they_read_and_write() -> None:
    """A kernel in any language is one call, with its effects and where it comes from."""
    text = """host.program 1 @main
  origin 0 %mul aten.mul.Tensor "model.py:3" "x * x"
  parameter x tensor
  kernel k0 on cpu (i0 < 4) @0
    parameter p0: f32[4] strides [1] on cpu
    parameter p1: f32[4] strides [1] on cpu
    parameter p2: f32[4] strides [1] on cpu
    outer
      a = load p0[i0]
      c = load p1[i0]
      b: f32 = mul a, c
      store p1[i0], b
      store p2[i0], b
  do
    note "first remark"
    note "second"
    y = allocate f32[4] strides [1] on cpu
    z = allocate f32[4] strides [1] on cpu
    copy x -> y
    launch k0 (x, y, z)
    return y, z
"""
    gm = to_graph(parse_program(text))
    (node,) = gm.graph.find_nodes(op="call_function", target=ops.launch)
    assert node.meta["reads"] == (0, 1)
    assert node.meta["writes"] == node.kwargs["writes"] == (1, 2)
    assert node.meta["origins"] == (("mul", "aten.mul.Tensor", "model.py:3"),)
    assert [n.meta["comment"] for n in gm.graph.nodes if "comment" in n.meta] == [
        "first remark\nsecond"
    ]
    with pytest.raises(LookupError, match="k0"):
        gm(torch.ones(4))
    check(text, [X[0, :1].repeat(4)])


def test_an_unknown_operator_has_a_named_error() -> None:
    text = HEAD + "    extern nobody.knows.default (x) -> (y)\n    return y\n"
    with pytest.raises(GyratorError) as caught:
        to_graph(parse_program(text))
    assert caught.value.diagnostic.code == "GY-FX-001"
    assert "nobody.knows" in caught.value.diagnostic.where


def test_sizes_that_only_one_side_defines() -> None:
    """A quotient by zero is no error on the side that is not taken, and is one elsewhere."""
    text = (
        HEAD
        + """    s0 = dim x 0
    s1 = dim x 1
    s2 = expr where(s1 == 3, s0, s0 // (s1 - 3)) + where(s1 == 3, 1, s0 % (s1 - 3))
    branch (s2 < 9) then (x) else (v) -> (r)
      then
      else
        v = view x as f32[1] strides [1] offset 0
    return (s2), r
"""
    )
    check(text, [X])
    check(text, [np.ones((4, 5), F32)])
    wrong = HEAD + "    s0 = dim x 0\n    s1 = expr 8 // (s0 - 4)\n    return (s1)\n"
    functions: dict[str, Callable[..., Any]] = forms(parse_program(wrong), {}, "")  # type: ignore[assignment]
    for function in functions.values():
        with pytest.raises(ZeroDivisionError):
            function([tensor(X)])
