"""Networks of pooling layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Model, images


def pool_models() -> tuple[Model, ...]:
    """Return the models whose heart is pooling."""
    return (
        Model("vgg", "pool", _vgg, images(3, 12)),
        Model("inception", "pool", Inception, images(4, 8)),
        Model("spatial-pyramid", "pool", Pyramid, images(4, 9)),
    )


def _vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Flatten(), nn.Linear(72, 10),
    )  # fmt: skip


class Inception(nn.Module):
    """Branches of several receptive fields, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(4, 3, 1)
        self.three = nn.Conv2d(4, 3, 3, padding=1)
        self.after = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, 13, h, w)."""
        average = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        largest = F.max_pool2d(x, 3, 1, 1)
        return torch.cat((self.one(x), self.three(x), self.after(average), largest), 1)


class Pyramid(nn.Module):
    """Adaptive pooling to several grids."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4 * (1 + 4 + 16), 7)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of a size that does not depend on the image's."""
        parts = [F.adaptive_avg_pool2d(x, side).flatten(1) for side in (1, 2, 4)]
        logits: Tensor = self.head(torch.cat(parts, 1))
        return logits
