"""Loading, calling, copying and compiling graph modules; the two hooks for compilers."""

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from fx_programs import kernels
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.parse import parse as parse_program
from gyrator_wrapper_fx import load as load_module
from gyrator_wrapper_fx import ops
from gyrator_wrapper_fx.load import LoadedProgram, find_compiler, load
from gyrator_wrapper_fx.stage import FxWrapper, to_graph

TEXT = """host.program 1 @main
  constant w: f32[4] strides [1] on cpu key w
  parameter x tensor
  kernel k0 on cpu (i0 < s0) sizes (s0)
    parameter p0: f32[s0] strides [1] on cpu
    parameter p1: f32[s0] strides [1] on cpu
    outer
      a = load p0[i0]
      b: f32 = add a, a
      store p1[i0], b
  do
    s0 = dim x 0
    y = allocate f32[s0] strides [1] on cpu
    launch k0 (x, y) sizes [s0]
    w = constant w
    call sub (y) -> (s)
    return y, (s0), w, none, s
  host.program 1 @sub
    parameter t tensor
    do
      extern aten.add_.Tensor (t, t)
      return t
"""
PROGRAM = parse_program(TEXT)
W = torch.arange(4.0)


def loaded(
    program: HostProgram = PROGRAM, compiler: Callable[..., Any] | None = None
) -> LoadedProgram:
    return load(program, kernels(PROGRAM), {"w": W}, compiler)


def test_a_loaded_program_takes_a_list_and_empties_it() -> None:
    actual = loaded()
    args = [torch.ones(3)]
    y, n, w, nothing, s = actual.plan(args)
    assert args == []
    assert n == 3 and nothing is None and w is W and s is y
    assert torch.equal(y, torch.full((3,), 4.0))


def test_an_argument_is_freed_after_its_last_use() -> None:
    text = """host.program 1 @main
  parameter x tensor
  do
    extern aten.neg.default (x) -> (y)
    free x
    extern fxload.look.default (y) -> (z)
    return z
"""
    library = torch.library.Library("fxload", "DEF")
    library.define("look(Tensor x) -> Tensor")
    alive: list[bool] = []

    def look(y: torch.Tensor) -> torch.Tensor:
        gc.collect()
        alive.append(watched() is not None)
        return y.clone()

    library.impl("look", look, "CompositeExplicitAutograd")
    actual = loaded(parse_program(text))
    args = [torch.ones(3)]
    watched = weakref.ref(args[0])
    actual.plan(args)
    assert alive == [False]
    library._destroy()


def test_arguments_that_require_grad_may_be_written_over() -> None:
    """A host program runs outside of autograd."""
    x = torch.ones(3, requires_grad=True)
    y = loaded().plan([x])[0]
    assert not y.requires_grad


def test_a_compiler_takes_the_graph() -> None:
    seen: list[torch.fx.GraphModule] = []

    def compile_graph(gm: torch.fx.GraphModule) -> Callable[..., Any]:
        seen.append(gm)
        return lambda *args: list(torch.fx.Interpreter(gm).run(*args))

    actual = loaded(compiler=compile_graph)
    args = [torch.ones(2)]
    result = actual.plan(args)
    assert isinstance(result, tuple) and args == []
    assert torch.equal(result[0], torch.full((2,), 4.0))
    assert seen == [actual.module]
    assert isinstance(actual.module.kernels, torch.nn.Module)


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        (lambda gm: None, "returned None, which cannot be called"),
        (lambda gm: gm.nothing, "raised AttributeError: .*nothing"),
    ],
)
def test_a_compiler_that_fails_is_named(compiler: Any, message: str) -> None:
    with pytest.raises(GyratorError, match=f"GY-FX-005: the graph compiler .*lambda.* {message}"):
        loaded(compiler=compiler)


def other(gm: torch.fx.GraphModule) -> Callable[..., Any]:
    return gm


def test_compilers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By themselves, by `module:attribute`, and as entry points."""
    assert find_compiler("") is None
    assert find_compiler(other) is other
    module = ModuleType("fx_compiler_for_a_test")
    vars(module)["compile_graph"] = other
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert find_compiler(f"{module.__name__}:compile_graph") is other
    point = EntryPoint("mine", f"{module.__name__}:compile_graph", load_module.ENTRY_POINTS)
    offered = EntryPoints((point,))
    monkeypatch.setattr(load_module, "entry_points", lambda group: offered.select(group=group))
    assert find_compiler("mine") is other


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nobody", ""), (":x", ""), ("math:", ""),
        ("nobody:compile", ": No module named 'nobody'"),
        ("math:nothing", ": module 'math' has no attribute 'nothing'"),
        ("math:pi", ": it is a float, not a function"),
    ],
)  # fmt: skip
def test_a_compiler_that_is_not_there(name: str, why: str) -> None:
    with pytest.raises(GyratorError) as caught:
        find_compiler(name)
    problem = caught.value.diagnostic
    assert (problem.code, problem.message) == (
        "GY-FX-004", f"there is no graph compiler {name!r}{why}"
    )  # fmt: skip


def test_dead_code_elimination_keeps_effects() -> None:
    """Launches, checks, copies, calls of subprograms and bodies have results that nobody uses."""
    text = TEXT.replace("    return y, (s0), w, none, s\n", """    assert_finite y
    profile "p"
      copy x -> y
    call sub (x) -> (unused)
    s1 = expr 2*s0
    return none
""")  # fmt: skip
    gm = to_graph(parse_program(text))
    before = [n.name for n in gm.graph.nodes]
    gm.graph.eliminate_dead_code()
    released = set(before) - {n.name for n in gm.graph.nodes}
    assert released == {"constant_w", "s", "mul", "unused"}


def test_copies_share_the_kernels() -> None:
    gm = to_graph(PROGRAM, kernels(PROGRAM), {"w": W})
    other = copy.deepcopy(gm)
    assert other.kernels is gm.kernels
    assert torch.equal(other(torch.ones(3))[0], gm(torch.ones(3))[0])


def test_shapes_propagate() -> None:
    """Fake tensors go through launches, subprograms and checks."""
    gm = to_graph(PROGRAM, {}, {"w": W})
    result = FakeTensorProp(gm).propagate(torch.ones(5))
    assert result[0].shape == (5,) and result[1] == 5


def test_a_symbolic_trace_holds_for_other_sizes() -> None:
    gm = to_graph(PROGRAM, kernels(PROGRAM), {"w": W})
    result = make_fx(gm, tracing_mode="symbolic", _allow_non_fake_inputs=True)(torch.ones(3))
    (launch,) = result.graph.find_nodes(op="call_function", target=ops.launch)
    assert launch.kwargs == {"writes": (1,)}
    for n in (3, 5, 1):
        assert torch.equal(result(torch.ones(n))[0], torch.full((n,), 4.0))
        assert result(torch.ones(n))[1] == n


def test_it_prints() -> None:
    text = to_graph(PROGRAM).print_readable(print_output=False)
    assert "launch(kernels, 'k0', (x, y), (s0,), writes = (1,))" in text
    assert "class sub(torch.nn.Module)" in text


def test_without_constants_it_can_be_read() -> None:
    gm = to_graph(PROGRAM)
    assert gm.constant_w.device.type == "meta"


def test_the_hash_is_of_the_source() -> None:
    wrapper = FxWrapper()
    assert wrapper.name == "fx"
    assert wrapper.content_hash == FxWrapper().content_hash
    assert len(wrapper.content_hash) == 64
    assert FxWrapper().emit(PROGRAM).language == "fx"


def test_names_that_mean_something_in_the_text() -> None:
    """Parameters, subprograms and results may be called what the text calls its own things."""
    names = ["g", "t", "rt", "torch", "ops", "operator", "children", "self", "kernels", "m0"]
    parameters = "".join(f"  parameter {n} tensor\n" for n in names)
    steps = "".join(f"    call kernels ({n}) -> ({n}_1)\n" for n in names)
    results = ", ".join(f"{n}_1, {n}" for n in names)
    text = f"""host.program 1 @torch
{parameters}  do
{steps}    return {results}
  host.program 1 @kernels
    parameter g tensor
    do
      extern aten.add.Tensor (g, g) -> (t)
      return t
"""
    of_names = loaded(parse_program(text))
    args = [torch.full((1,), float(k)) for k in range(len(names))]
    actual = [t.item() for t in of_names.plan(list(args))]
    assert actual == [f * k for k in range(len(names)) for f in (2, 1)]


def test_constants_of_every_kind_in_the_text() -> None:
    """Infinite and complex numbers, dtypes, layouts, formats and lists are written and read."""
    text = """host.program 1 @main
  parameter x tensor
  do
    extern aten.add.Scalar (x, nan) -> (a)
    extern aten.add.Scalar (x, -inf) -> (b)
    extern aten.empty.memory_format ([1, 2, 3, 4]) with {dtype=<dtype float16>, layout=<layout strided>, device=<device cpu>, pin_memory=%none, memory_format=<memory_format channels_last>} -> (c)
    extern aten.argmax.default (x, none, true) -> (d)
    extern aten.div.Tensor_mode (x, x) with {rounding_mode="floor"} -> (e)
    return a, b, c, d, e
""".replace("pin_memory=%none", "pin_memory=none")  # noqa: E501
    a, b, c, d, e = loaded(parse_program(text)).plan([torch.ones(2)])
    assert np.isnan(a.numpy()).all() and np.isneginf(b.numpy()).all()
    assert c.dtype == torch.float16 and c.is_contiguous(memory_format=torch.channels_last)
    assert d.shape == (1,) and torch.equal(e, torch.ones(2))
