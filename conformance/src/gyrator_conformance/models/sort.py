"""Choosing and ordering."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Inputs, Model, also, floats


def sort_models() -> tuple[Model, ...]:
    """Return the models whose heart is an order of values."""
    return (
        Model("moe-routing", "sort", Moe, also(floats(8), _ranks(4))),
        Model("sorted-pooling", "sort", SortedPool, also(floats(6, 4), _ranks(6))),
    )


def _ranks(k: int) -> Inputs:
    def make(generator: torch.Generator, n: int) -> tuple[Tensor, ...]:
        return (torch.stack([torch.randperm(k, generator=generator) for _ in range(n)]),)

    return make


class Moe(nn.Module):
    """Two of four experts for each token.

    The router's scores are an input of whole numbers apart: which experts win must not hang on
    rounding, for then no error could be judged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.up = nn.Parameter(torch.randn(4, 8, 12) * 0.3)
        self.down = nn.Parameter(torch.randn(4, 12, 8) * 0.3)

    def forward(self, x: Tensor, ranks: Tensor) -> Tensor:
        """Return each row of `x` (n, 8) through its experts; `ranks` (n, 4) orders them."""
        scores = torch.tanh(self.router(x)) * 0.25 + ranks
        weight, chosen = scores.topk(2, dim=-1)
        weight = torch.softmax(weight, -1)
        hidden = F.gelu(torch.einsum("nd,nkdh->nkh", x, self.up[chosen]))
        outputs = torch.einsum("nkh,nkhd->nkd", hidden, self.down[chosen])
        return (weight.unsqueeze(-1) * outputs).sum(1)


class SortedPool(nn.Module):
    """Rows ordered by a key, of which the first are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first three rows of `x` (n, 6, 4) by `ranks` (n, 6), and their places."""
        order = torch.argsort(ranks, dim=1, stable=True)[:, :3]
        largest = self.linear(x).gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
        return torch.sort(largest, dim=2, descending=True).values, order
