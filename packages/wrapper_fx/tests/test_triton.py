"""Users' Triton kernels and device guards; what needs a GPU runs on one."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.host.parse import parse as parse_program
from gyrator_wrapper_fx import triton
from gyrator_wrapper_fx.load import load
from gyrator_wrapper_fx.stage import FxWrapper, to_graph

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

TEXT = """host.program 1 @main
  parameter x tensor
  user_kernel scale (x, y, n, FACTOR, BLOCK) settings {num_warps=2}
    | @triton.jit
    | def double(a, FACTOR: tl.constexpr):
    |     return a * FACTOR
    |
    | @triton.jit
    | def scale(x, y, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    |     at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    |     tl.store(y + at, double(tl.load(x + at, at < n), FACTOR), at < n)
  do
    s0 = dim x 0
    y = allocate f32[s0] strides [1] on cuda:0
    triton scale grid [[s0 // 64 + 1, 1, 1]] {x=x, y=y, n=(s0)} constants {FACTOR=3, BLOCK=64}
    z = allocate f32[s0] strides [1] on cuda:0
    triton scale grid [[s0 // 64 + 1, 1, 1]] {x=y, y=z, n=(s0)} constants {FACTOR=2, BLOCK=64}
    with_device cuda:0
      host = allocate f32[s0] strides [1] on cpu
      copy z -> host
    return y, z, host
"""


def higher_order(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    return list(gm.graph.find_nodes(op="call_function", target=triton_kernel_wrapper_mutation))


@needs_triton
def test_a_users_kernel_is_a_call_of_the_higher_order_op() -> None:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    gm = to_graph(parse_program(TEXT))
    node, _ = higher_order(gm)
    assert {k: str(v) for k, v in node.kwargs["kwargs"].items()} == {"x": "x", "y": "y", "n": "s0"}
    constants = kernel_side_table.get_constant_args(node.kwargs["constant_args_idx"])
    assert constants == {"FACTOR": 3, "BLOCK": 64, "num_warps": 2}
    kernel = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
    assert kernel.arg_names == ["x", "y", "n", "FACTOR", "BLOCK"]
    assert "tl.program_id(0)" in kernel.src
    assert node.kwargs["tma_descriptor_metadata"] == {}


@needs_triton
def test_descriptors() -> None:
    """They reach the op as tensors with metadata, also from inside of a body."""
    text = """host.program 1 @main
  parameter x tensor
  user_kernel k (d, e, N)
    | @triton.jit
    | def k(d, e, N: tl.constexpr):
    |     pass
  do
    s0 = dim x 0
    d = tma x [s0] block [64] bytes 4 stable
    profile "p"
      e = tma x [2*s0] block [s0, 8] bytes 4
      triton k grid [[s0]] {d=d, e=e} constants {N=(s0)}
    return none
"""
    program = parse_program(text)
    gm = to_graph(program)
    (node,) = higher_order(gm.body)
    inputs = {n.name: n for n in gm.body.graph.find_nodes(op="placeholder")}
    d, x, s0 = inputs["d"], inputs["x"], inputs["s0"]
    (double,) = [n for n in gm.body.graph.nodes if n.name == "mul"]
    assert node.kwargs["tma_descriptor_metadata"] == {
        "d": ("stable", ([64],)),
        "e": ("experimental", ([double], [s0, 8], 4)),
    }
    assert node.kwargs["kwargs"] == {"d": d, "e": x, "N": s0}


@needs_triton
def test_the_text_of_a_users_kernel() -> None:
    program = parse_program(TEXT)
    emitted = FxWrapper().emit(program)
    assert "def scale(x, y, n" in emitted.text


@needs_triton
@pytest.mark.parametrize("grid", ["[]", "[[s0], [1]]"])
def test_grids_of_configurations_that_the_program_does_not_list(grid: str) -> None:
    text = TEXT.replace("[[s0 // 64 + 1, 1, 1]]", grid, 1)
    with pytest.raises(GyratorError) as caught:
        to_graph(parse_program(text))
    assert caught.value.diagnostic.code == "GY-FX-003"


def test_without_triton_there_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "find_spec", lambda name: None)
    with pytest.raises(GyratorError) as caught:
        to_graph(parse_program(TEXT))
    assert caught.value.diagnostic.code == "GY-FX-002"


@needs_triton
@needs_gpu
@pytest.mark.parametrize("n", [1, 64, 1000])
@pytest.mark.parametrize("form", ["graph", "loaded", "interpreter", "make_fx"])
def test_on_a_gpu(form: str, n: int) -> None:
    """Kernels, a guard and a copy to the host give what eager gives."""
    from torch.fx.experimental.proxy_tensor import make_fx

    program = parse_program(TEXT)
    gm = to_graph(program)
    x = torch.randn(n, device="cuda:0")
    functions: dict[str, Any] = {
        "graph": gm,
        "loaded": lambda x: load(program, {}, {}).plan([x]),
        "interpreter": torch.fx.Interpreter(gm).run,
        "make_fx": lambda x: make_fx(gm)(x.clone())(x),
    }
    y, z, host = functions[form](x)
    torch.cuda.synchronize()
    torch.testing.assert_close(y, 3 * x)
    torch.testing.assert_close(z, 6 * x)
    torch.testing.assert_close(host, (6 * x).cpu())
    assert z.device == torch.device("cuda:0")
