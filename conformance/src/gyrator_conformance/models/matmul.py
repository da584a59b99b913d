"""Dense products."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Model, also, floats


def matmul_models() -> tuple[Model, ...]:
    """Return the models whose heart is products of matrices."""
    return (
        Model("mixer", "matmul", Mixer, floats(6, 8)),
        Model("lora", "matmul", Lora, floats(5, 12)),
        Model("bilinear", "matmul", Bilinear, also(floats(6), floats(8))),
        Model("autoencoder", "matmul", _autoencoder, floats(20)),
    )


class Mixer(nn.Module):
    """MLP-Mixer: one product along tokens, one along channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.tokens, self.channels = nn.Linear(6, 6), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x` (n, 6, 8)."""
        x = x + F.gelu(self.tokens(self.norm1(x).mT)).mT
        return x + F.gelu(self.channels(self.norm2(x)))


class Lora(nn.Module):
    """A linear layer and a trained product of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, 10)
        self.base.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(12, 2)), nn.Parameter(torch.randn(2, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, 5, 10)."""
        base: Tensor = self.base(x)
        return torch.baddbmm(base, x @ self.down, self.up.expand(x.shape[0], -1, -1), alpha=0.5)


class Bilinear(nn.Module):
    """A bilinear form, outer products and a batched product."""

    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Bilinear(6, 8, 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the form's values (n, 4), and a product of each row's outer product."""
        outer = torch.einsum("ni,nj->nij", x, y)
        return self.form(x, y), torch.bmm(outer, outer.mT).sum(2)


def _autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 12), nn.Tanh(), nn.Linear(12, 4), nn.Linear(4, 12), nn.Tanh(),
        nn.Linear(12, 20),
    )  # fmt: skip
