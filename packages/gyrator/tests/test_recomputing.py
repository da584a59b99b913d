"""Training, where results of norms and log probabilities are computed again and not saved."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gyrator.reports.accuracy import worst_error
from gyrator.reports.records import GraphRecord
from gyrator.session import Session

Made = tuple[torch.Tensor, ...]
CLASSES = 1 << 12


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def _running_batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    mean, var = torch.zeros_like(w.detach()), torch.ones_like(w.detach())
    return [F.hardswish(F.silu(F.batch_norm(x, mean, var, w, b, True))), mean, var]


def _weighted(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.float(), t, w.detach().float().abs(), ignore_index=3)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Made]]] = {
    "group norm": (
        lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)),
        lambda n: (_drawn(n, 8, n + 3, 5), _drawn(8), _drawn(8)),
    ),
    "layer norm": (
        lambda x, w, b: F.gelu(F.layer_norm(x, (24,), w, b)),
        lambda n: (_drawn(n, 7, 24), _drawn(24), _drawn(24)),
    ),
    "batch norm": (_running_batch_norm, lambda n: (_drawn(n, 8, 3, n + 6), _drawn(8), _drawn(8))),
    "cross entropy": (
        F.cross_entropy,
        lambda n: (3 * _drawn(16 + n, CLASSES), torch.randint(0, CLASSES, (16 + n,))),
    ),
    "weighted cross entropy": (
        _weighted,
        lambda n: (
            _drawn(16 + n, CLASSES),
            torch.randint(0, 8, (16 + n,)),
            _drawn(CLASSES),
        ),
    ),
}


def _trained(call: Callable[..., Any], inputs: Made, dtype: torch.dtype) -> list[torch.Tensor]:
    floats = [g.is_floating_point() for g in inputs]
    leaf = [g.to(dtype).requires_grad_() if f else g for g, f in zip(inputs, floats, strict=True)]
    results = call(*leaf)
    results = results if isinstance(results, list) else [results]
    loss = torch.stack([(r.double() ** 2).sum() for r in results if r.requires_grad]).sum()
    expected = [x for x, f in zip(leaf, floats, strict=True) if f]
    gradients = torch.autograd.grad(loss, expected, allow_unused=True)
    return [*(r.detach() for r in results), *(g for g in gradients if g is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_training(
    session: Session, records: list[GraphRecord], name: str, dynamic: bool, dtype: torch.dtype
) -> None:
    fn, make = CASES[name]
    compiled = torch.compile(fn, backend=session.backend, dynamic=dynamic)
    for n in (4, 6) if dynamic else (4,):
        inputs = make(n)
        exact = _trained(fn, inputs, torch.float64)
        eager, results = _trained(fn, inputs, dtype), _trained(compiled, inputs, dtype)
        for got, want, true in zip(results, eager, exact, strict=True):
            assert got.dtype is want.dtype and got.stride() == want.stride()
            off, bound = (worst_error([r], [true]) for r in (got, want))
            assert off <= max(2 * bound, 4 * torch.finfo(dtype).eps)  # a loss is a single number
    assert not [e for r in records for e in r.externs]
    phases = [r.phase for r in records]
    assert phases == ["forward", "backward"]


@pytest.mark.parametrize("function", [F.relu, F.relu6, lambda x: F.leaky_relu(x, 0.3)])
def test_conditions_are_saved_on_the_cpu(
    session: Session, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return function(x @ w).mean(1)

    x, w = _drawn(9, 7), _drawn(7, 64).requires_grad_()
    result = torch.compile(run, backend=session.backend)(x, w)
    node: Any = result.grad_fn
    assert [t.dtype for t in node.saved_tensors if t.numel() == 9 * 64] == [torch.bool]
    actual = torch.autograd.grad(result.sin().sum(), w)
    expected = torch.autograd.grad(run(x, w).sin().sum(), w)
    torch.testing.assert_close(actual, expected)
