"""Convolutional networks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Model, also, floats, images


def conv_models() -> tuple[Model, ...]:
    """Return the models whose heart is convolution."""
    small, frozen = images(3, 12), {"freezing": True}
    return (
        Model("cnn", "conv", _cnn, small),
        Model("cnn-frozen", "conv", _cnn, small, trains=False, options=frozen),
        Model("resnet", "conv", ResNet, small),
        Model("resnet-frozen", "conv", ResNet, small, trains=False, options=frozen),
        Model("mobilenet", "conv", MobileNet, small),
        Model("convnext", "conv", ConvNext, small),
        Model("unet", "conv", UNet, small),
        Model("unet-frozen", "conv", UNet, small, trains=False, options=frozen),
        Model("gan-generator", "conv", _generator, floats(8)),
        Model("gan-discriminator", "conv", _discriminator, images(3, 16)),
        Model("diffusion-block", "conv", DiffusionBlock, also(images(8, 6), _steps)),
        Model("wavenet", "conv", WaveNet, floats(4, 20)),
        Model("conv3d", "conv", _conv3d, floats(2, 4, 6, 6)),
    )


def _steps(generator: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return (torch.rand(n, generator=generator),)


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(200, 10),
    )  # fmt: skip


class Basic(nn.Module):
    """A residual block of two convolutions with batch normalisation."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.skip = nn.Conv2d(inner, outer, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y: Tensor = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        return F.relu(y + self.skip(x))


class ResNet(nn.Module):
    """Two stages of residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.blocks = nn.Sequential(Basic(8, 8, 1), Basic(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


class MobileNet(nn.Module):
    """An inverted residual with a depthwise convolution and squeeze-and-excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, 12, 1)
        self.depthwise = nn.Conv2d(12, 12, 3, 2, 1, groups=12, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.squeeze, self.excite = nn.Conv2d(12, 3, 1), nn.Conv2d(3, 12, 1)
        self.project = nn.Conv2d(12, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected features."""
        y = F.hardswish(self.norm(self.depthwise(F.relu6(self.expand(x)))))
        scale = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        projected: Tensor = self.project(y * scale)
        return projected


class ConvNext(nn.Module):
    """A patch stem and a block: depthwise 7x7, layer normalisation over channels, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, 2)
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, 8, h / 2, w / 2)."""
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Down, bottom and up, with a skip that is concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 6, 3, padding=1)
        self.bottom = nn.Conv2d(6, 12, 3, padding=1)
        self.up = nn.ConvTranspose2d(12, 6, 2, 2)
        self.leave = nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the shape of `x`."""
        high = F.silu(self.enter(x))
        low = F.silu(self.bottom(F.max_pool2d(high, 2)))
        smooth = F.interpolate(high[:, :3], scale_factor=0.5, mode="nearest")
        fine = F.interpolate(smooth, scale_factor=2.0, mode="bilinear", align_corners=False)
        image: Tensor = self.leave(torch.cat((self.up(low), high), 1))
        return image + fine


def _generator() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 64), nn.Unflatten(1, (4, 4, 4)), nn.BatchNorm2d(4), nn.ReLU(),
        nn.ConvTranspose2d(4, 4, 4, 2, 1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def _discriminator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, 4, 2, 1),
        nn.InstanceNorm2d(8), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1), nn.Sigmoid(),
    )  # fmt: skip


class DiffusionBlock(nn.Module):
    """A residual block of a denoiser: group normalisation, and the time's embedding added."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, 8), nn.GroupNorm(4, 8)
        self.conv1, self.conv2 = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(16, 8)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Denoise `x` (n, 8, h, w) at the times (n,)."""
        frequency = torch.exp(torch.arange(8, device=x.device, dtype=x.dtype) * -0.5)
        angle = time.unsqueeze(1) * frequency
        wave = torch.cat((angle.sin(), angle.cos()), 1)
        y = self.conv1(F.silu(self.norm1(x))) + self.time(wave)[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        return x + y


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=d) for d in (1, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return a sequence of the shape of `x` (n, 4, length)."""
        for k, layer in enumerate(self.layers):
            gate, value = layer(F.pad(x, (2**k, 0))).chunk(2, 1)
            x = x + torch.sigmoid(gate) * torch.tanh(value)
        return x


def _conv3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv3d(4, 4, 2, 2),
        nn.Flatten(),
        nn.Linear(72, 5),
    )
