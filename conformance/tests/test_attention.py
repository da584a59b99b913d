"""Attention and its gradients from torch.compile to kernels, on a machine without a GPU."""

import pytest
import torch
from torch.nn import functional as F

from gyrator import explain
from gyrator_runtime.device import cpu_isa

on_vectors = pytest.mark.skipif(
    cpu_isa() not in ("avx2", "avx512"), reason="the library computes attention"
)


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


def _masks(rows: int, columns: int) -> dict[str, torch.Tensor | None]:
    seen = torch.rand(rows, columns) > 0.3
    seen[[0, rows - 1]] = False
    return {
        "none": None,
        "boolean": seen,
        "added": torch.randn(2, 1, rows, columns),
        "causal": None,
        "padded": torch.zeros(2, 1, 1, columns).masked_fill(torch.arange(columns) > 150, -1e4),
    }


@on_vectors
@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "added", "padded"])
@pytest.mark.parametrize("groups", [4, 2])
def test_few_keys_are_read_from_one_product_by_a_kernel(kind: str, groups: int) -> None:
    torch.manual_seed(1)
    rows, columns, length = 150, 197, 40
    mask = _masks(rows, columns)[kind]
    queries = torch.randn(2, rows, 4 * length)
    both = torch.randn(2, columns, 2 * groups * length)

    def attend(queries: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
        q = queries.unflatten(2, (4, length)).transpose(1, 2)
        k, v = both.unflatten(2, (2, groups, length)).permute(2, 0, 3, 1, 4)
        causal, gqa = kind == "causal", groups < 4
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=gqa)

    found = explain(attend, queries, both, options={"strict": True, "cache": False})
    assert not found.extern_calls
    torch.testing.assert_close(found.result, attend(queries, both))


@on_vectors
def test_few_keys_may_become_many() -> None:
    torch.manual_seed(2)
    attend = torch.compile(
        F.scaled_dot_product_attention, backend="gyrator", dynamic=True, options={"strict": True}
    )
    for rows, columns in ((70, 33), (9, 300), (130, 1), (65, 700)):
        q, k = torch.randn(2, 3, rows, 32), torch.randn(2, 3, columns, 32)
        torch.testing.assert_close(
            attend(q, k, k.cos()), F.scaled_dot_product_attention(q, k, k.cos())
        )
