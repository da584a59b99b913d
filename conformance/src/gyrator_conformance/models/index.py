"""Look-ups in tables."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Model, floats, tokens


def index_models() -> tuple[Model, ...]:
    """Return the models whose heart is reading at places that tensors hold."""
    return (
        Model("embedding-bag", "index", EmbeddingBags, tokens(20, 3)),
        Model("recommender", "index", Recommender, tokens(20, 4)),
        Model("grid-lookup", "index", GridLookup, floats(2)),
    )


class EmbeddingBags(nn.Module):
    """Bags of fixed length, summed and averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.EmbeddingBag(20, 6, mode="sum")
        self.means = nn.EmbeddingBag(20, 6, mode="mean")

    def forward(self, ids: Tensor) -> Tensor:
        """Return the bags of `ids` (n, 3), side by side."""
        return torch.cat((self.sums(ids), self.means(ids)), 1)


class Recommender(nn.Module):
    """Tables for each feature, products of all pairs, and a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 6) for _ in range(4))
        self.linear = nn.Linear(6 + 6, 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return a probability for each row of `ids` (n, 4)."""
        embedded = torch.stack([t(ids[:, k]) for k, t in enumerate(self.tables)], 1)
        products = embedded @ embedded.transpose(1, 2)
        rows, columns = torch.triu_indices(4, 4, 1, device=ids.device)
        pairs = products[:, rows, columns]
        return torch.sigmoid(self.linear(torch.cat((embedded.sum(1), pairs), 1)))


class GridLookup(nn.Module):
    """Bilinear reading of a learned grid at coordinates that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = nn.Parameter(torch.randn(1, 3, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, 3) at the points `x` (n, 2)."""
        coordinates = torch.tanh(x).view(1, -1, 1, 2)
        samples = F.grid_sample(self.grid, coordinates, align_corners=False)
        return samples[0, :, :, 0].T
