"""Random ops of checkpointed regions, which the backward pass computes again."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from gyrator.config import Config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")


def _attention(x: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
    heads = x[None, None]
    return F.scaled_dot_product_attention(heads.sin(), heads.cos(), heads, dropout_p=dropout).tanh()


REGIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "attention": _attention,
    "attention that drops": lambda x: _attention(x, 0.5),
    "dropout": lambda x: F.dropout(x.sin(), 0.5).cos(),
    "permutation": lambda x: x.sin()[torch.randperm(8)].cos(),
    "several": lambda x: (x.exp() * torch.rand(8, 8) + torch.randn_like(x)).cos() * torch.rand(8),
    "in place": lambda x: (x.sin() * torch.empty_like(x).exponential_()).cos(),
    "of samples": lambda x: x.softmax(1).detach().multinomial(2).sum() * x.sin().exp(),
}


def _step(region: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return checkpoint(region, x * 2, use_reentrant=False) + torch.rand(8)  # type: ignore[no-any-return]


def _trained(call: Callable[..., torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """Return the result, the gradient, and what is drawn next."""
    torch.manual_seed(3)
    leaf = x.clone().requires_grad_()
    result = call(leaf)
    (gradient,) = torch.autograd.grad(result.sum(), leaf)
    return [result.detach(), gradient, torch.rand(2)]


@pytest.mark.parametrize("min_cut", [True, False])
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
@pytest.mark.parametrize("name", REGIONS)
def test_numbers_of_eager_mode(config: Config, name: str, wrapper: str, min_cut: bool) -> None:
    options = {
        "fallback_random": True, "strict": True, "progress": False,
        "wrapper": wrapper, "min_cut": min_cut,
    }  # fmt: skip

    def step(x: torch.Tensor) -> torch.Tensor:
        return _step(REGIONS[name], x)

    x = torch.randn(8, 8)
    with Session(options=options, config=config) as session:
        got = _trained(torch.compile(step, backend=session.backend), x)
    torch.testing.assert_close(got, _trained(step, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_belong_to_what_was_drawn(session: Session, dtype: torch.dtype) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: F.dropout(x * 3, 0.5) * 2, x, use_reentrant=False)  # type: ignore[no-any-return]

    x = torch.ones(64, dtype=dtype, requires_grad=True)
    result = torch.compile(step, backend=session.backend)(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(gradient, result.detach())
    assert 0 < (gradient == 0).sum() < 64


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_only_what_draws_is_saved(config: Config, dropout: float) -> None:
    records: list[GraphRecord] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        return _step(lambda x: _attention(x, dropout), x)

    options = {"strict": True, "progress": False}
    with Session(options=options, config=config, observer=records.append) as session:
        _trained(torch.compile(step, backend=session.backend), torch.randn(8, 8))
    called = {r.phase: [e.target for e in r.externs] for r in records}
    again = any("attention" in t and "backward" not in t for t in called["backward"])
    assert again == (dropout == 0)


def test_layers_with_seeds_of_their_own_share_a_kernel(config: Config) -> None:
    records: list[GraphRecord] = []

    def layers(x: torch.Tensor) -> list[torch.Tensor]:
        masks = []
        for _ in range(3):
            x = F.dropout(x @ x.T, 0.5).sign().abs()
            masks.append(x)
        return masks

    options = {"strict": True, "progress": False}
    with Session(options=options, config=config, observer=records.append) as session:
        call = torch.compile(layers, backend=session.backend)
        first, *others = call(torch.rand(64, 64) + 1)
    (record,) = records
    assert len(record.kernels) == 1
    assert record.launches == 3
    for mask in others:  # all three differ, and half of the elements are dropped
        assert 0.4 < (mask == first).float().mean() < 0.6
        assert 0.4 < mask.mean() < 0.6
