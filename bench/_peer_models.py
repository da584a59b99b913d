"""Models of one tensor result for bench/cpu_peers.py: small, with random weights, for inference."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ConvNextConfig,
    ConvNextForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    SwinConfig,
    SwinForImageClassification,
)


@frozen
class Peer:
    """A model, and its inputs in order."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]


class Logits(nn.Module):
    """A model of transformers that returns a tensor."""

    def __init__(self, model: nn.Module) -> None:
        """Wrap a model."""
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        """Return the model's logits."""
        return self.model(x).logits


class UNet(nn.Module):
    """Convolutions down and up again, with joins between equal sizes."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        """Make the layers."""
        super().__init__()
        self.down = nn.ModuleList(map(_double, (3, *widths[:-2]), widths[:-1]))
        self.middle = _double(widths[-2], widths[-1])
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in pairs)
        self.join = nn.ModuleList(_double(2 * o, o) for _, o in pairs)
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of two classes."""
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        result: Tensor = self.last(x)
        return result


def _double(inputs: int, outputs: int) -> nn.Module:
    both = ((inputs, outputs), (outputs, outputs))
    layers = [
        (nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()) for i, o in both
    ]
    return nn.Sequential(*(layer for three in layers for layer in three))


class Dlrm(nn.Module):
    """Rows of tables and numbers, their products with each other, and two perceptrons."""

    def __init__(self, tables: int = 8, rows: int = 10000, width: int = 32) -> None:
        """Make the layers."""
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _perceptron(13, 128, width)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1])
        self.top = _perceptron(width + pairs.shape[1], 256, 128, 1)

    def forward(self, numbers: Tensor, rows: Tensor) -> Tensor:
        """Return how likely each example is."""
        bottom = self.bottom(numbers)
        found = [table(rows[:, k]) for k, table in enumerate(self.tables)]
        vectors = torch.stack([bottom, *found], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        result: Tensor = torch.sigmoid(self.top(torch.cat([bottom, products], 1)))
        return result


def _perceptron(*widths: int, between: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = [(nn.Linear(i, o), between()) for i, o in pairwise(widths)]
    return nn.Sequential(*[layer for both in layers for layer in both][:-1])


def _bert() -> nn.Module:
    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    return Logits(BertForSequenceClassification(config))


def _resnet() -> nn.Module:
    config = ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic")
    return Logits(ResNetForImageClassification(config))


def _convnext() -> nn.Module:
    config = ConvNextConfig(depths=[2, 2, 4, 2], hidden_sizes=[48, 96, 192, 384])
    return Logits(ConvNextForImageClassification(config))


def _swin() -> nn.Module:
    config = SwinConfig(embed_dim=48, depths=[2, 2, 2, 2], num_heads=[2, 4, 8, 16])
    return Logits(SwinForImageClassification(config))


def _images(size: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(1, 3, size, size),)


PEERS: Mapping[str, Peer] = MappingProxyType({
    "BERT": Peer(_bert, lambda: (torch.randint(0, 30522, (1, 128)),)),
    "ResNet-18": Peer(_resnet, _images(224)),
    "ConvNeXt": Peer(_convnext, _images(224)),
    "U-Net": Peer(UNet, _images(128)),
    "Swin": Peer(_swin, _images(224)),
    "MLP": Peer(
        lambda: _perceptron(256, 1024, 1024, 256, between=nn.GELU), lambda: (torch.randn(64, 256),)
    ),
    "DLRM": Peer(Dlrm, lambda: (torch.randn(128, 13), torch.randint(0, 10000, (128, 8)))),
})  # fmt: skip


def build(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model as it is for inference, with statistics of batch norms that are no identity,
    and its inputs."""
    torch.manual_seed(0)
    model = PEERS[name].build().eval()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.1, 0.1)
            nn.init.uniform_(part.running_var, 0.8, 1.2)
    return model.requires_grad_(False), PEERS[name].inputs()
