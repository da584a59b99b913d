"""Attention and its gradients from torch.compile to kernels, on a machine without a GPU."""

import pytest
import torch
from torch.nn import functional as F

from gyrator import explain


@pytest.mark.parametrize("wrapper", ["python", "fx"])
def test_attention_runs_in_kernels_made_from_templates(wrapper, monkeypatch) -> None:
    monkeypatch.setenv("GYRATOR_TARGETS", "cpu-triton")
    torch.manual_seed(0)
    shapes = ((2, 5, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8))
    given = [torch.randn(s).transpose(1, 2).requires_grad_() for s in shapes]
    grad = torch.randn(2, 2, 5, 8)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.backward(grad)
        return out

    options = {"extern_kernels": "none", "wrapper": wrapper, "strict": True, "cache": False}
    found = explain(step, *given, options=options)
    assert not found.extern_calls
    names = [k.name for g in found.graphs for k in g.kernels]
    assert any(n.endswith("_attention") for n in names), names
    assert any(n.endswith("_attention_gradients") for n in names), names
    leaves = [t.detach().requires_grad_() for t in given]
    want = F.scaled_dot_product_attention(*leaves, is_causal=True)
    want.backward(grad)
    torch.testing.assert_close(found.result, want)
    for t, leaf in zip(given, leaves, strict=True):
        torch.testing.assert_close(t.grad, leaf.grad)


def test_what_the_template_refuses_is_a_call_of_the_library(monkeypatch) -> None:
    monkeypatch.setenv("GYRATOR_TARGETS", "cpu-triton")
    q = torch.randn(1, 1, 2, 520)
    options = {"extern_kernels": "none", "strict": True, "cache": False}
    found = explain(lambda q: F.scaled_dot_product_attention(q, q, q), q, options=options)
    ((op, reason),) = found.unlowered
    assert "flash_attention_for_cpu" in op
    assert reason == "vectors of length 520 are not between 1 and 512 long"
    torch.testing.assert_close(found.result, F.scaled_dot_product_attention(q, q, q))
