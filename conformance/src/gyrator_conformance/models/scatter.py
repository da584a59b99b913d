"""Graphs and segments."""

import torch
from torch import Tensor, nn

from gyrator_conformance.models.model import Model, floats


def scatter_models() -> tuple[Model, ...]:
    """Return the models whose heart is writing at places that tensors hold."""
    return (
        Model("graph-convolution", "scatter", GraphConvolution, _graph),
        Model("graph-attention", "scatter", GraphAttention, _graph),
        Model("scatter-reduce", "scatter", Segments, _segments),
        Model("masked-update", "scatter", MaskedUpdate, floats(6, 5)),
    )


def _graph(generator: torch.Generator, n: int) -> tuple[Tensor, ...]:
    edges = torch.randint(0, 6, (2, 3 * n), generator=generator)
    return torch.randn(6, 8, generator=generator), edges


def _segments(generator: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return (
        torch.randn(2 * n, 5, generator=generator),
        torch.randint(0, 4, (2 * n, 5), generator=generator),
    )


class GraphConvolution(nn.Module):
    """Messages along edges, added up and divided by degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return new features of the nodes `x` (m, 8); `edges` (2, e) are pairs of nodes."""
        source, target = edges
        total = torch.zeros_like(x).index_add(0, target, self.linear(x)[source])
        degree = x.new_zeros(x.shape[0]).index_add(0, target, x.new_ones(target.shape[0]))
        return torch.relu(total / degree.clamp(min=1).unsqueeze(1))


class GraphAttention(nn.Module):
    """A softmax over the edges that end in one node."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.score = nn.Linear(8, 8), nn.Linear(16, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return new features of the nodes."""
        y = self.linear(x)
        source, target = y[edges[0]], y[edges[1]]
        weight = torch.exp(torch.tanh(self.score(torch.cat((source, target), 1))))
        norm = x.new_zeros(x.shape[0], 1).index_add(0, edges[1], weight)
        return torch.zeros_like(y).index_add(0, edges[1], weight * source) / (norm + 0.1)


class Segments(nn.Module):
    """Sums, means and maxima of elements that share a place."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(5) + 0.5)

    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        """Fold `x` (m, 5) into four rows at `index` (m, 5)."""
        y, start = x * self.scale, x.new_full((4, 5), 0.5)
        return (
            start.scatter_add(0, index, y),
            start.scatter_reduce(0, index, y, "mean"),
            start.scatter_reduce(0, index, y, "amax", include_self=False),
        )


class MaskedUpdate(nn.Module):
    """Slices, masks and indices written in place to a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Parameter(torch.randn(2, 5))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` (n, 6, 5) with parts replaced."""
        y = x.clone()
        y[:, 1:3] = self.patch
        y[:, 5] += y[:, 0] * 2
        y = torch.where(y > 1, y / 2, y).index_fill(1, torch.tensor([4], device=x.device), 0.25)
        y[:, ::2, 1].mul_(3)
        return y.masked_fill(x < -1.5, 0.0)
