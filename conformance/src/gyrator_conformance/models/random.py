"""Models that draw random numbers.

They are compared with eager in its own stream of numbers, drawn by ATen.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Model, floats


def random_models() -> tuple[Model, ...]:
    """Return the models whose heart is randomness."""
    eager_stream = {"fallback_random": True}
    return (
        Model("dropout", "random", Dropout, floats(24), options=eager_stream),
        Model("vae", "random", Vae, floats(16), options=eager_stream),
    )


class Dropout(nn.Module):
    """Two layers with dropout between, on while the model trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return the second layer's output."""
        hidden = F.dropout(torch.relu(self.first(x)), 0.3, self.training)
        out: Tensor = self.second(hidden)
        return out


class Vae(nn.Module):
    """A sampled code, its divergence from the prior, and the reconstruction."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 8), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the reconstruction."""
        mean, log = self.encode(x).chunk(2, 1)
        noise = torch.randn(4, dtype=torch.float32, device=x.device).to(x.dtype)
        decoded = self.decode(mean + torch.exp(log / 2) * noise)
        divergence = (mean.square() + log.exp() - 1 - log).sum(1) / 2
        return (decoded - x).square().sum(1).mean() + divergence.mean(), decoded
