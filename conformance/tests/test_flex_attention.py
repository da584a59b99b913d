"""Flexible attention from torch.compile to kernels, against its definition in float64."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import frozen
from torch.nn.attention import flex_attention as flex

from gyrator import explain

TARGETS = ("cpu", "cpu-triton")
TABLE = torch.randn(16, 16)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
PARTS = torch.randint(0, 3, (256,)).sort().values.int()


def document(b: Any, h: Any, m: Any, n: Any) -> Any:
    return (PARTS[m] == PARTS[n]) & (m >= n)


SCORES: dict[str, Callable[..., Any]] = {
    "alibi": lambda s, b, h, m, n: s + SLOPES[h] * (n - m),
    "softcap": lambda s, b, h, m, n: 5 * torch.tanh(s / 5),
    "table": lambda s, b, h, m, n: s + TABLE[m % 16, n % 16],
}
MASKS: dict[str, Callable[..., Any]] = {
    "causal": lambda b, h, m, n: m >= n,
    "window": lambda b, h, m, n: (m >= n) & (m - n < 20),
    "document": document,
    "nowhere": lambda b, h, m, n: (m >= n) & (m % 3 != 0),
    "heads": lambda b, h, m, n: (m >= n) | (h > 1),
    "stripes": lambda b, h, m, n: n % 300 < 170,
}


@frozen(kw_only=True)
class Case:
    """One attention."""

    score: str = ""
    mask: str = ""
    dtype: torch.dtype = torch.float32
    heads: int = 2
    groups: int = 2
    rows: int = 70
    columns: int = 70
    query: int = 16
    value: int = 16
    block: int = 32
    sums: bool = True

    @property
    def error(self) -> float:
        """The bound of the results' errors: that of the dtype, and one for the rounding of scores,
        which ALiBi makes as large as rows are long."""
        largest = float(SLOPES.max()) * self.columns if self.score == "alibi" else 0.0
        return ERRORS[self.dtype] + largest * torch.finfo(torch.float32).eps

    def tensors(self) -> list[torch.Tensor]:
        """Return queries, keys and values."""
        shapes = (
            (2, self.heads, self.rows, self.query),
            (2, self.groups, self.columns, self.query),
            (2, self.groups, self.columns, self.value),
        )
        return [torch.randn(s).to(self.dtype) for s in shapes]

    def blocks(self) -> Any:
        """Return the block mask."""
        if not self.mask:
            return None
        heads = self.heads if self.mask == "heads" else None
        sizes = (self.rows, self.columns)
        return flex.create_block_mask(
            MASKS[self.mask], None, heads, *sizes, device="cpu", BLOCK_SIZE=self.block
        )

    def call(self, *given: Any) -> Any:
        """Return what is compiled."""
        return flex.flex_attention(
            *given[:3], score_mod=SCORES.get(self.score), block_mask=given[3],
            enable_gqa=self.heads != self.groups, return_lse=self.sums,
        )  # fmt: skip

    def wanted(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        """Return the result and the logarithms of the sums by definition."""
        q, k, v = (t.double() for t in (q, k, v))
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        places = [
            torch.arange(n).view([-1 if d == k else 1 for k in range(4)])
            for d, n in enumerate(scores.shape)
        ]
        if self.score:
            scores = SCORES[self.score](scores, *places)
        if self.mask:
            scores = scores.masked_fill(~MASKS[self.mask](*places), -torch.inf)
        sums = scores.logsumexp(-1)
        weights = torch.exp(scores - sums.nan_to_num(neginf=0)[..., None])
        return [weights @ v, sums][: 1 + self.sums]


CASES = {
    "causal": Case(mask="causal", heads=4),
    "softcap": Case(mask="window", score="softcap", dtype=torch.bfloat16, heads=4, block=64),
    "alibi": Case(mask="document", score="alibi", heads=4, groups=1, query=24, value=8),
    "table": Case(score="table", rows=37, columns=53, query=20, value=24, dtype=torch.float16),
    "nowhere": Case(mask="nowhere", sums=False),
    "heads": Case(mask="heads", heads=4),
    "row": Case(score="softcap", rows=1, columns=100),
    "long row": Case(mask="stripes", score="alibi", rows=1, columns=1000, heads=4, groups=1),
    "long rows": Case(score="table", heads=4, rows=5, columns=777, value=24, dtype=torch.bfloat16),
    "long heads": Case(mask="heads", heads=4, rows=3, columns=900),
    "long nowhere": Case(mask="nowhere", rows=9, columns=1500, block=128),
}
VERIFIED = {"cpu": ("alibi", "heads"), "cpu-triton": ("long row", "long rows", "long heads")}
ERRORS = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def close(got: Any, want: torch.Tensor, error: float) -> None:
    error *= max(1.0, want[want.isfinite()].abs().max().item())
    torch.testing.assert_close(got.double(), want, rtol=0, atol=error)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """Forget the lengths of other tests, so that each is constant again."""
    torch._dynamo.reset()


def compiled(case: Case, given: Any, **options: Any) -> Any:
    options = {"strict": True, "cache": False, "progress": False} | options
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without")
        return explain(case.call, *given, options=options)


def kernels(found: Any) -> list[str]:
    return [k.name for g in found.graphs for k in g.kernels]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRATOR_TARGETS", target)
    case = CASES[name]
    given = case.tensors()
    verify = "kernels" if name in VERIFIED[target] else ""
    found = compiled(case, (*given, case.blocks()), verify=verify)
    assert not found.extern_calls
    parts = target == "cpu-triton" and name.startswith("long")
    wanted = "_flex_attention_parts" if parts else "_flex_attention"
    templates = [n for n in kernels(found) if n.startswith("t")]
    assert [n.endswith(wanted) for n in templates] == [True], kernels(found)
    got = found.result if case.sums else (found.result,)
    for mine, want in zip(got, case.wanted(*given), strict=True):
        close(mine, want, case.error)


@pytest.mark.parametrize("name", ["causal", "softcap", "alibi", "table", "nowhere"])
def test_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRATOR_TARGETS", "cpu-triton")
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)  # refuses gradients on CPUs
    case = CASES[name]
    given = [t.requires_grad_() for t in case.tensors()]
    leaves = [t.detach().double().requires_grad_() for t in given]
    wanted = case.wanted(*leaves)
    grads = [torch.randn_like(t) for t in wanted]

    def total(results: Any) -> torch.Tensor:
        parts = zip(results, grads, wanted, strict=True)
        return sum((t.double().where(w.isfinite(), 0) * g).sum() for t, g, w in parts)

    blocks = case.blocks()

    def step(*given: torch.Tensor) -> Any:
        results = case.call(*given, blocks)
        return results if case.sums else (results,)

    options = {"strict": True, "cache": False, "progress": False}
    found = explain(lambda *t: total(step(*t)).backward(), *given, options=options)
    assert any(n.endswith("_flex_attention_gradients") for n in kernels(found)), kernels(found)
    total(wanted).backward()
    for t, leaf in zip(given, leaves, strict=True):
        close(t.grad, leaf.grad, case.error)


@pytest.mark.parametrize("target", TARGETS)
def test_lengths_that_vary(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRATOR_TARGETS", target)
    case = Case(score="softcap", groups=1)
    given = case.tensors()
    for t in given:
        torch._dynamo.mark_dynamic(t, 2)
    found = compiled(case, (*given, case.blocks()))
    assert any(n.endswith("_flex_attention") for n in kernels(found)), kernels(found)
    for mine, want in zip(found.result, case.wanted(*given), strict=True):
        close(mine, want, case.error)


@pytest.mark.parametrize(
    "case",
    [
        Case(mask="causal", dtype=torch.float64),
        Case(score="table", query=300, rows=9, columns=9),
        Case(mask="causal", block=24, rows=48, columns=48),
    ],
)
def test_what_has_no_template_is_computed_densely(case: Case) -> None:
    given = case.tensors()
    found = compiled(case, (*given, case.blocks()))
    assert kernels(found) and not any("flex" in n for n in kernels(found))
    for mine, want in zip(found.result, case.wanted(*given), strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-4, atol=1e-4)
