"""Normalisations, statistics and losses."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Function, Model, also, floats


def reduction_models() -> tuple[Model, ...]:
    """Return the models whose heart is folding over dimensions."""
    labels = _labels
    return (
        Model("layer-norm", "reduction", lambda: nn.LayerNorm((6, 10)), floats(6, 10)),
        Model("rms-norm", "reduction", lambda: RmsNorm(32), floats(5, 32)),
        Model("batch-norm", "reduction", lambda: nn.BatchNorm2d(4), floats(4, 5, 5)),
        Model("group-norm", "reduction", lambda: nn.GroupNorm(2, 6), floats(6, 4, 4)),
        Model("statistics", "reduction", lambda: Function(statistics), floats(7, 9)),
        Model("mixture", "reduction", lambda: Mixture(5, 8), floats(8)),
        Model("cross-entropy", "reduction", lambda: Classify(12, 10), also(floats(12), labels)),
        Model("regression-losses", "reduction", lambda: Function(regression), _pairs),
        Model("contrastive-loss", "reduction", lambda: Contrastive(16), _pairs),
    )


def _labels(generator: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 10, (n,), generator=generator),)


def _pairs(generator: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return tuple(torch.randn(n, 16, generator=generator) for _ in range(2))


class RmsNorm(nn.Module):
    """Root-mean-square normalisation, computed in float32 as Llama does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        wide = x if x.dtype is torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def statistics(x: Tensor) -> tuple[Tensor, ...]:
    """Fold over one dimension, over several, over all, and over none."""
    deviation, mean = torch.std_mean(x, dim=(1, 2), correction=1)
    return (
        *(deviation, mean, x.sum(), x.amax(1), x.amin((0, 2)), x.mean(2, keepdim=True)),
        *(torch.linalg.vector_norm(x, dim=2), x.abs().sum(1).log(), x.var(0, correction=0)),
        *((x > 0).any(1), x.sigmoid().prod(2)),
    )


class Mixture(nn.Module):
    """Log density of a mixture of diagonal normal distributions."""

    def __init__(self, components: int, width: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(components))
        self.mean = nn.Parameter(torch.randn(components, width))
        self.scale = nn.Parameter(torch.zeros(components, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the log density of each row of `x` (n, width)."""
        z = (x.unsqueeze(1) - self.mean) * torch.exp(-self.scale)
        log = -0.5 * z.square().sum(-1) - self.scale.sum(-1)
        return torch.logsumexp(log + F.log_softmax(self.logits, 0), dim=1)


class Classify(nn.Module):
    """A linear classifier and its loss, with smoothed labels."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits."""
        logits = self.linear(x)
        return F.cross_entropy(logits, labels, label_smoothing=0.1), logits


def regression(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Return the losses between two tensors that are not a classification."""
    likely = torch.sigmoid(y)
    return (
        *(F.mse_loss(x, y), F.huber_loss(x, y, delta=0.7), F.smooth_l1_loss(x, y, beta=0.5)),
        F.binary_cross_entropy_with_logits(x, likely),
        F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean"),
        F.cosine_embedding_loss(x, y, torch.ones_like(x[:, 0]), margin=0.2),
    )


class Contrastive(nn.Module):
    """The symmetric loss of CLIP between two towers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(width, 12), nn.Linear(width, 12)
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss; rows of `x` and `y` belong together."""
        a, b = F.normalize(self.left(x), dim=-1), F.normalize(self.right(y), dim=-1)
        logits = a @ b.T * self.temperature.exp()
        here = torch.arange(x.shape[0], device=x.device)
        return (F.cross_entropy(logits, here) + F.cross_entropy(logits.T, here)) / 2
