"""Losses on the rows of a wide product, and their gradients, in chunks: same results, less
memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from joint_graphs import BF16, F32, Joint, classes, compared, drawn

from gyrator_ir.passes import PassEdits
from gyrator_lowering.fx_passes import ChunkLosses

ROWS, WIDTH, WORDS = 33, 8, 4096
CHUNKED = PassEdits().configured("chunk-losses", least=1, rows=8)
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def z_loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits = F.linear(x, w).float()
    squares = torch.logsumexp(logits, -1).square()
    return F.cross_entropy(logits, target) + 1e-2 * squares.mean()


def masked(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(F.linear(x, w), target, reduction="none")
    return (losses * (target % 3 == 0)).mean()


def batches(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """As in language models: two dimensions of rows, and widened logits."""
    logits = F.linear(x.view(3, -1, WIDTH), w).float()
    return F.cross_entropy(30 * torch.tanh(logits / 30).view(-1, WORDS), target)


def logits_too(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> Any:
    logits = F.linear(x, w)
    return F.cross_entropy(logits, target), logits


def cases(dtype: torch.dtype) -> dict[str, Case]:
    x, w = drawn(ROWS, WIDTH, dtype=dtype), drawn(WORDS, WIDTH, dtype=dtype)
    b, turned = drawn(WORDS, dtype=dtype), drawn(WIDTH, WORDS, dtype=dtype)
    target, share = classes(ROWS, WORDS), torch.rand(WORDS, dtype=dtype)
    return {
        "mean": (lambda x, w, t: F.cross_entropy(F.linear(x, w), t), (x, w, target)),
        "turned": (lambda x, w, t: F.cross_entropy(x @ w, t), (x, turned, target)),
        "sum": (
            lambda x, w, b, t: F.cross_entropy(
                F.linear(x, w, b), t, ignore_index=7, reduction="sum"
            ),
            (x, w, b, classes(ROWS, WORDS, 7)),
        ),
        "smooth": (
            lambda x, w, b, t: F.cross_entropy(F.linear(x, w, b), t, label_smoothing=0.1),
            (x, w, b, target),
        ),
        "weights": (
            lambda x, w, t, c: F.cross_entropy(F.linear(x, w), t, c),
            (x, w, target, share),
        ),
        "z-loss": (z_loss, (x, w, target)),
        "masked": (masked, (x, w, target)),
        "batches": (batches, (x, w, target)),
        "frozen head": (
            lambda x, w, t: F.cross_entropy(F.linear(x, w), t),
            (x, w.detach(), target),
        ),
        "scaled": (lambda x, w, t: F.cross_entropy(F.linear(x, w), t) / -3, (x, w, target)),
    }


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("name", cases(F32))
def test_logits_are_not_saved(name: str, dtype: torch.dtype) -> None:
    run, inputs = cases(dtype)[name]
    joint = Joint(run, inputs, edits=CHUNKED)
    assert "chunk-losses" in joint.changed
    compared(joint, inputs)
    forward = joint.parts["forward"].graph.nodes
    shapes = {tuple(n.meta["val"].shape) for n in forward if n.target in PRODUCTS}
    assert not any(s == (ROWS, WORDS) for s in shapes)
    assert max(joint.saved()) <= WIDTH * WORDS * dtype.itemsize


PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


WHOLE: dict[str, Callable[..., Any]] = {
    "logits are a result": logits_too,
    "losses are a result": lambda x, w, t: F.cross_entropy(F.linear(x, w), t, reduction="none"),
    "over all rows": lambda x, w, t: F.cross_entropy(F.linear(x, w).softmax(0), t),
    "a total scales the rows": lambda x, w, t: F.cross_entropy(
        F.linear(x, w) / F.linear(x, w).sum(), t
    ),
    "the loss scales the rows": lambda x, w, t: F.cross_entropy(F.linear(x, w), t).exp(),
    "no loss": lambda x, w, t: F.linear(F.gelu(F.linear(x, w)), w.t()).sum(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_losses_across_rows_are_not_chunked(name: str) -> None:
    inputs = drawn(ROWS, WIDTH), drawn(WORDS, WIDTH), classes(ROWS, WORDS)
    assert "chunk-losses" not in Joint(WHOLE[name], inputs, edits=CHUNKED).changed


class Clipped(torch.autograd.Function):
    """A gradient that is not linear in that of the loss."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad.clamp(-0.01, 0.01)


def test_clipped_gradients_are_not_chunked() -> None:
    def run(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(Clipped.apply(F.linear(x, w)), target)

    inputs = drawn(ROWS, WIDTH), drawn(WORDS, WIDTH), classes(ROWS, WORDS)
    assert "chunk-losses" not in Joint(run, inputs, edits=CHUNKED).changed


@pytest.mark.parametrize(("rows", "width"), [(ROWS, WIDTH), (64, 64)])
def test_small_logits_are_not_chunked(rows: int, width: int) -> None:
    """Nor are logits with fewer rows than the weight's gradient has columns, or with only a few
    more."""
    run = cases(F32)["mean"][0]
    inputs = drawn(rows, width), drawn(WORDS, width), classes(rows, WORDS)
    edits = None if width == WIDTH else CHUNKED
    assert ChunkLosses().least > rows * WORDS
    assert "chunk-losses" not in Joint(run, inputs, edits=edits).changed
