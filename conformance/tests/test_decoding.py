"""Attention of few queries over many keys, as kernels over parts of the keys."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import frozen

from gyrator import explain


@frozen(kw_only=True)
class Case:
    """One attention."""

    dtype: torch.dtype = torch.bfloat16
    batch: int = 2
    heads: int = 4
    groups: int = 4
    rows: int = 1
    columns: int = 200
    query: int = 16
    value: int = 16
    mask: tuple[int, ...] = ()
    """The shape of a mask; booleans unless `added`."""
    added: torch.dtype | None = None
    scale: float | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Return queries, keys, values and the mask, of which one row attends to nothing."""
        shapes = (
            (self.batch, self.rows, self.heads, self.query),
            (self.batch, self.groups, self.columns, self.query),
            (self.batch, self.groups, self.columns, self.value),
        )
        q, k, v = (torch.randn(s).to(self.dtype) for s in shapes)
        given = [q.transpose(1, 2), k, v]
        if self.mask:
            seen = torch.rand(self.mask) < 0.7
            if not self.added:
                seen.view(-1, self.mask[-1])[0] = False
            given.append(torch.randn(self.mask).to(self.added) if self.added else seen)
        return given

    def call(self, *given: Any) -> torch.Tensor:
        """Return what is compiled."""
        q, k, v, mask = (*given, None)[:4]
        gqa = self.heads != self.groups
        return F.scaled_dot_product_attention(q, k, v, mask, scale=self.scale, enable_gqa=gqa)

    def wanted(self, *given: torch.Tensor) -> torch.Tensor:
        """Return the result by definition, in float64."""
        q, k, v = (t.double() for t in given[:3])
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * (self.scale or self.query**-0.5)
        for mask in given[3:]:
            seen = mask.dtype is torch.bool
            scores = scores.masked_fill(~mask, -torch.inf) if seen else scores + mask.double()
        sums = scores.logsumexp(-1)
        return torch.exp(scores - sums.nan_to_num(neginf=0)[..., None]) @ v


CASES = {
    "plain": Case(),
    "long": Case(columns=5000, heads=2, groups=2, batch=1),
    "mask": Case(mask=(1, 1, 1, 200), groups=2),
    "mask of heads": Case(mask=(2, 4, 3, 200), rows=3, groups=1, dtype=torch.float16),
    "bias": Case(mask=(1, 4, 1, 131), columns=131, added=torch.bfloat16, groups=1),
    "wide bias": Case(mask=(2, 1, 2, 700), columns=700, rows=2, added=torch.float32),
    "vectors": Case(query=24, value=24, scale=0.3, columns=256),
}
ERRORS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def _target(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setenv("GYRATOR_TARGETS", "cpu-triton")


def kernels(call: Any, want: torch.Tensor, *given: torch.Tensor, **options: Any) -> list[str]:
    """Check a call against what is wanted; return the names of its kernels."""
    options = {"strict": True, "cache": False, "progress": False} | options
    with torch.no_grad():
        found = explain(call, *given, options=options)
    assert not found.extern_calls
    error = ERRORS[found.result.dtype] * max(1.0, want.abs().max().item())
    torch.testing.assert_close(found.result.double(), want, rtol=0, atol=error)
    return [k.name for g in found.graphs for k in g.kernels]


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    case = CASES[name]
    verify = "kernels" if name == "mask of heads" else ""
    given = case.tensors()
    names = kernels(case.call, case.wanted(*given), *given, verify=verify)
    assert sum("attention_parts" in n for n in names) == 1, names


def test_numbers_of_keys_that_vary() -> None:
    case = Case(mask=(1, 1, 1, 200), groups=2)
    q, k, v, mask = case.tensors()
    both, longer = torch.stack((k, v)), torch.cat((mask, mask), -1)
    torch._dynamo.mark_dynamic(both, 3)

    def call(q: torch.Tensor, both: torch.Tensor, longer: torch.Tensor) -> torch.Tensor:
        return case.call(q, *both, longer[..., : both.shape[3]])

    names = kernels(call, case.wanted(q, k, v, mask), q, both, longer)
    assert any("attention_parts" in n for n in names), names


@pytest.mark.parametrize("case", [Case(rows=20), Case(columns=100), Case(dtype=torch.float32)])
def test_other_attention_is_a_library_call(case: Case) -> None:
    given = case.tensors()
    options = {"strict": True, "cache": False, "progress": False}
    with torch.no_grad():
        found = explain(case.call, *given, options=options)
    assert found.extern_calls
