"""Models of one tensor result for bench/cpu_peers.py: small, with random weights."""

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
    EfficientNetConfig,
    EfficientNetForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    Qwen3Config,
    Qwen3ForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    SwinConfig,
    SwinForImageClassification,
    T5Config,
    T5EncoderModel,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
)
from transformers.models.whisper.modeling_whisper import WhisperEncoder


@frozen
class Peer:
    """A model, and its inputs in order."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]


class Result(nn.Module):
    """A model of transformers that returns a tensor."""

    def __init__(self, model: nn.Module, name: str = "logits", **fixed: Any) -> None:
        """Wrap a model; `name` is the result's, `fixed` what else the model is called with."""
        super().__init__()
        self.model = model
        self.name = name
        self.fixed = fixed

    def forward(self, x: Tensor) -> Any:
        """Return one of the model's results."""
        return getattr(self.model(x, **self.fixed), self.name)


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


class Mixer(nn.Module):
    """Perceptrons over the patches of an image and over their channels, in turn."""

    def __init__(self, width: int = 256, patches: int = 196, blocks: int = 6) -> None:
        """Make the layers."""
        super().__init__()
        gelu = nn.GELU
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * blocks + 1))
        self.across = nn.ModuleList(
            _perceptron(patches, width // 2, patches, between=gelu) for _ in range(blocks)
        )
        self.within = nn.ModuleList(
            _perceptron(width, 4 * width, width, between=gelu) for _ in range(blocks)
        )
        self.last = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return a number for each of 1000 classes."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        for k, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            x = x + across(self.norms[2 * k](x).transpose(1, 2)).transpose(1, 2)
            x = x + within(self.norms[2 * k + 1](x))
        result: Tensor = self.last(self.norms[-1](x).mean(1))
        return result


class Tcn(nn.Module):
    """Causal convolutions over time, each of a wider reach than the one before."""

    def __init__(self, width: int = 96, blocks: int = 6) -> None:
        """Make the layers."""
        super().__init__()
        self.first = nn.Conv1d(8, width, 1)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**k) for _ in range(2))
            for k in range(blocks)
        )
        self.last = nn.Linear(width, 24)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next 24 numbers of each series."""
        x = self.first(x)
        for k, block in enumerate(self.blocks):
            y = x
            for layer in block:
                y = torch.relu(layer(nn.functional.pad(y, (2 * 2**k, 0))))
            x = torch.relu(x + y)
        result: Tensor = self.last(x[:, :, -1])
        return result


class Diffusion(nn.Module):
    """Residual blocks with group norms, which a number shifts, and attention between pixels."""

    def __init__(self, width: int = 64) -> None:
        """Make the layers."""
        super().__init__()
        self.time = _perceptron(width, 4 * width, 4 * width, between=nn.SiLU)
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.blocks = nn.ModuleList([
            Shifted(width, width, 4 * width), Shifted(width, 2 * width, 4 * width),
            Shifted(2 * width, 2 * width, 4 * width), Shifted(3 * width, width, 4 * width),
        ])  # fmt: skip
        self.smaller = nn.Conv2d(width, width, 3, 2, 1)
        self.norm = nn.GroupNorm(32, 2 * width)
        self.heads = nn.Linear(2 * width, 6 * width)
        self.join = nn.Linear(2 * width, 2 * width)
        self.last = nn.Sequential(
            nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1)
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the noise in an image."""
        shift = self.time(time)
        before = self.blocks[0](self.first(x), shift)
        x = self.blocks[1](self.smaller(before), shift)
        x = self.blocks[2](x + self.attention(x), shift)
        x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
        result: Tensor = self.last(self.blocks[3](torch.cat([x, before], 1), shift))
        return result

    def attention(self, x: Tensor) -> Tensor:
        """Return what each pixel takes from the others."""
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        heads = self.heads(pixels).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(*heads.unbind())
        joined: Tensor = self.join(found.transpose(1, 2).flatten(2))
        return joined.transpose(1, 2).reshape(x.shape)


class Shifted(nn.Module):
    """A residual block of two convolutions, with a shift of its own for each channel between."""

    def __init__(self, inputs: int, outputs: int, shift: int) -> None:
        """Make the layers."""
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)])
        both = ((inputs, outputs), (outputs, outputs))
        self.layers = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in both)
        self.shift = nn.Linear(shift, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        """Return the image with what the block adds."""
        silu = nn.functional.silu
        y = self.layers[0](silu(self.norms[0](x))) + self.shift(silu(shift))[:, :, None, None]
        result: Tensor = self.skip(x) + self.layers[1](silu(self.norms[1](y)))
        return result


def _bert() -> nn.Module:
    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    return Result(BertForSequenceClassification(config))


def _resnet() -> nn.Module:
    config = ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic")
    return Result(ResNetForImageClassification(config))


def _convnext() -> nn.Module:
    config = ConvNextConfig(depths=[2, 2, 4, 2], hidden_sizes=[48, 96, 192, 384])
    return Result(ConvNextForImageClassification(config))


def _swin() -> nn.Module:
    config = SwinConfig(embed_dim=48, depths=[2, 2, 2, 2], num_heads=[2, 4, 8, 16])
    return Result(SwinForImageClassification(config))


def _qwen3() -> nn.Module:
    config = Qwen3Config(
        vocab_size=8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, intermediate_size=768,
    )  # fmt: skip
    return Result(Qwen3ForCausalLM(config), use_cache=False)


def _vit() -> nn.Module:
    config = ViTConfig(
        hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768
    )
    return Result(ViTForImageClassification(config))


def _mobilenet() -> nn.Module:
    config = MobileNetV2Config(depth_multiplier=0.5, initializer_range=0.15)
    return Result(MobileNetV2ForImageClassification(config))


def _efficientnet() -> nn.Module:
    config = EfficientNetConfig(
        width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640, image_size=192,
        initializer_range=0.15,
    )  # fmt: skip
    model = EfficientNetForImageClassification(config)
    model.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)  # OpenVINO refuses one of 640 by 640
    return Result(model)


def _whisper() -> nn.Module:
    config = WhisperConfig(
        d_model=256, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=1024,
        max_source_positions=200,
    )  # fmt: skip
    return Result(WhisperEncoder(config), "last_hidden_state")


def _t5() -> nn.Module:
    config = T5Config(
        vocab_size=8192, d_model=256, d_kv=64, d_ff=768, num_layers=4, num_heads=4,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    return Result(T5EncoderModel(config), "last_hidden_state")


def _images(size: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(1, 3, size, size),)


def _words(kinds: int, length: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randint(0, kinds, (1, length)),)


PEERS: Mapping[str, Peer] = MappingProxyType({
    "BERT": Peer(_bert, _words(30522, 128)),
    "ResNet-18": Peer(_resnet, _images(224)),
    "ConvNeXt": Peer(_convnext, _images(224)),
    "U-Net": Peer(UNet, _images(128)),
    "Swin": Peer(_swin, _images(224)),
    "MLP": Peer(
        lambda: _perceptron(256, 1024, 1024, 256, between=nn.GELU), lambda: (torch.randn(64, 256),)
    ),
    "DLRM": Peer(Dlrm, lambda: (torch.randn(128, 13), torch.randint(0, 10000, (128, 8)))),
    "Qwen3": Peer(_qwen3, _words(8192, 128)),
    "ViT": Peer(_vit, _images(224)),
    "MobileNetV2": Peer(_mobilenet, _images(224)),
    "EfficientNet": Peer(_efficientnet, _images(192)),
    "Whisper": Peer(_whisper, lambda: (torch.randn(1, 80, 400),)),
    "T5": Peer(_t5, _words(8192, 128)),
    "Mixer": Peer(Mixer, _images(224)),
    "TCN": Peer(Tcn, lambda: (torch.randn(4, 8, 256),)),
    "Diffusion": Peer(Diffusion, lambda: (torch.randn(1, 4, 32, 32), torch.randn(1, 64))),
})  # fmt: skip


def build(
    name: str, dtype: torch.dtype = torch.float32, step: str = "inference"
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model and its inputs.

    For inference, statistics of batch norms are no identity. For training, batch norms take those
    of the batch, and nothing is dropped, so that results can be compared.
    """
    torch.manual_seed(0)
    training = step == "training"
    model = PEERS[name].build().eval()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.1, 0.1)
            nn.init.uniform_(part.running_var, 0.8, 1.2)
            part.train(training)
    inputs = (x.to(dtype) if x.is_floating_point() else x for x in PEERS[name].inputs())
    return model.requires_grad_(training).to(dtype), tuple(inputs)
