"""Passes that suit calls to libraries: what they change, and that results stay as they are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_lowering.fx_passes import pad_products, passes_for, split_bias

aten = torch.ops.aten
BF16 = torch.bfloat16


def targets(**numbers: Any) -> dict[str, Target]:
    return {
        "cpu": Target(
            device="cpu",
            arch="plain",
            kernel_backend="interpreter",
            capabilities=Capabilities(dtypes=frozenset()),
            heuristics=Heuristics(**numbers),
        )
    }


WANTED, OTHERS = targets(product_bytes=16, bias_apart=True), targets()


def drawn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


def compare(check: Any, run: Callable[..., Any], *inputs: torch.Tensor, change: Any) -> Any:
    """Change the graph of `run`, and check that it gives the same, in the same form."""
    want = run(*inputs)
    gm = check.trace(run, inputs)
    assert change(gm)
    gm.graph.lint()
    gm.recompile()
    got = gm(*inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert a.stride() == b.stride()
    return gm


def padded(gm: Any) -> bool:
    return pad_products(gm, WANTED, least=1)


def operands(gm: Any) -> list[tuple[Any, Any]]:
    """The sizes and strides of what products read."""
    found = []
    for node in gm.graph.nodes:
        if node.target in (aten.mm.default, aten.addmm.default):
            found += [(a.meta["val"].shape, a.meta["val"].stride()) for a in node.args[-2:]]
    return found


PRODUCTS = {
    "head": (lambda x, w: (x @ w.t(),), (drawn(64, 72), drawn(97, 72))),
    "depth": (lambda x, w: (x @ w,), (drawn(64, 67), drawn(67, 72))),
    "lying": (lambda g, x: (g.t() @ x,), (drawn(80, 67), drawn(80, 72))),
    "both": (lambda g, w, x: (g @ w, g.t() @ x), (drawn(64, 97), drawn(97, 72), drawn(64, 72))),
    "biased": (
        lambda b, x, w: (torch.addmm(b, x, w.t()),),
        (drawn(97), drawn(64, 67), drawn(97, 67)),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_rows_of_odd_matrices_are_filled(check: Any, name: str) -> None:
    run, inputs = PRODUCTS[name]
    gm = compare(check, run, *inputs, change=padded)
    for shape, strides in operands(gm):
        assert max(strides) % 8 == 0
        assert all(n % 8 == 0 for n in shape)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (drawn(64, 72), drawn(72, 96)),  # whole vectors already
        (drawn(3, 72), drawn(72, 97)),  # too short
        (drawn(64, 72, dtype=torch.float32), drawn(72, 97, dtype=torch.float32)),
        (drawn(64, 72), drawn(72, 97)),  # small, as the pass is used
    ],
)
def test_other_products_stay(check: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    gm = check.trace(lambda a, b: a @ b, (x, y))
    least = 1 if x.shape[0] == 3 or x.dtype is not BF16 or y.shape[1] == 96 else 1 << 30
    assert not pad_products(gm, WANTED, least)
    assert not pad_products(gm, OTHERS, 1)


def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),)


def gradients(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sizes, mask = [w.shape[0]], [True, True, True]
    return tuple(
        aten.convolution_backward(g, x, w, sizes, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_biases_leave_convolutions(check: Any, channels_last: bool) -> None:
    x, w = drawn(2, 3, 5, 6, dtype=torch.float32), drawn(4, 3, 3, 3, dtype=torch.float32)
    g, b = drawn(2, 4, 5, 6, dtype=torch.float32), drawn(4, dtype=torch.float32)
    if channels_last:
        x, g = (t.contiguous(memory_format=torch.channels_last) for t in (x, g))

    forward = compare(check, convolved, x, w, b, change=lambda gm: split_bias(gm, WANTED))
    backward = compare(check, gradients, g, x, w, change=lambda gm: split_bias(gm, WANTED))

    (node,) = [n for n in forward.graph.nodes if n.target is aten.convolution.default]
    assert node.args[2] is None
    (node,) = [n for n in backward.graph.nodes if n.target is aten.convolution_backward.default]
    assert node.args[10] == [True, True, False]
    assert not split_bias(forward, OTHERS)


def test_they_run_before_the_others() -> None:
    assert list(passes_for(WANTED))[:2] == ["split_bias", "pad_products"]
