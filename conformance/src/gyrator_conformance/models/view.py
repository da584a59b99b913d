"""Rearrangements."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Function, Model, images


def view_models() -> tuple[Model, ...]:
    """Return the models whose heart is index arithmetic."""
    return (
        Model("pixel-shuffle", "view", PixelShuffle, images(4, 6)),
        Model("rearrangements", "view", lambda: Function(rearranged), images(4, 6)),
        Model("unfold-patches", "view", Patches, images(2, 6)),
    )


class PixelShuffle(nn.Module):
    """Super-resolution: channels become pixels, after padding by reflection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return images (n, 2, 12, 12)."""
        return F.pixel_shuffle(self.conv(F.pad(x, (1, 1, 1, 1), mode="reflect")), 2)


def rearranged(x: Tensor) -> tuple[Tensor, ...]:
    """Flip, roll, repeat, cut, stack and transpose."""
    a, b = x.flip(2).roll(1, 3).split((1, 3), 1)
    c = torch.cat((a.expand(-1, 3, -1, -1), b), 2)[:, :, ::2, 1:]
    d = c.permute(3, 0, 2, 1).contiguous().movedim(1, 0)
    return (
        c,
        d.repeat_interleave(2, 1),
        x.diagonal(dim1=2, dim2=3) + 1,
        torch.stack((a, a), 1).sum(2),
    )


class Patches(nn.Module):
    """Overlapping patches, taken apart and folded back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(18, 18)

    def forward(self, x: Tensor) -> Tensor:
        """Return images of the shape of `x`."""
        columns = F.unfold(x, 3, padding=1).transpose(1, 2)
        mixed: Tensor = self.linear(columns).transpose(1, 2)
        return F.fold(mixed, (x.shape[2], x.shape[3]), 3, padding=1) / 9
