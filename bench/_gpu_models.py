"""The models of `bench/gpu.py`, of published or middling sizes, with random weights."""

from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

DEVICE = "cuda"
Inputs = dict[str, Tensor]
Result = transformers.modeling_outputs.ImageClassifierOutput


def tokens(vocabulary: int, batch: int, length: int) -> Inputs:
    """Random words; the model is trained to repeat them."""
    words = torch.randint(0, vocabulary, (batch, length), device=DEVICE)
    return {"input_ids": words, "labels": words}


def images(count: int, side: int = 224) -> Inputs:
    """Random images of 1,000 classes."""
    labels = torch.randint(0, 1000, (count,), device=DEVICE)
    return {"labels": labels, "pixel_values": torch.randn(count, 3, side, side, device=DEVICE)}


class Labelled(nn.Module):
    """A network that returns logits, with the loss of its labels: classes, or flags as floats."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, labels: Tensor, **inputs: Tensor) -> Result:
        """Classify. `inputs` go to the network in order."""
        logits = self.model(*inputs.values())
        if labels.is_floating_point():
            loss = F.binary_cross_entropy_with_logits(logits.float(), labels.float())
        else:
            loss = F.cross_entropy(logits.float(), labels)
        return Result(loss=loss, logits=logits)


def bert() -> tuple[nn.Module, Inputs]:
    """BERT-base."""
    zero = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**zero))
    return model, tokens(30522, 16, 128)


def gpt2() -> tuple[nn.Module, Inputs]:
    """GPT-2."""
    config = transformers.GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config), tokens(50257, 4, 512)


def llama() -> tuple[nn.Module, Inputs]:
    """Four layers of a Llama of width 2048."""
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=4,
        num_attention_heads=16, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), tokens(32000, 4, 512)


def classifier(family: str, count: int) -> Callable[[], tuple[nn.Module, Inputs]]:
    """Return what makes a network of transformers for so many images, of its default size."""

    def make() -> tuple[nn.Module, Inputs]:
        config = getattr(transformers, f"{family}Config")(num_labels=1000)
        model = getattr(transformers, f"{family}ForImageClassification")(config)
        return model, images(count)

    return make


def qwen() -> tuple[nn.Module, Inputs]:
    """Four layers of Qwen3 of width 1,024."""
    config = transformers.Qwen3Config(
        vocab_size=32000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4,
        num_attention_heads=16, num_key_value_heads=8, head_dim=64, max_position_embeddings=1024,
        use_cache=False,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config), tokens(32000, 4, 512)


def t5() -> tuple[nn.Module, Inputs]:
    """Four and four layers of T5 of width 512."""
    config = transformers.T5Config(
        vocab_size=32000, d_model=512, d_ff=2048, num_layers=4, num_decoder_layers=4, num_heads=8,
        dropout_rate=0.0, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), tokens(32000, 8, 256)


def whisper() -> tuple[nn.Module, Inputs]:
    """The size of Whisper tiny."""
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
        decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536, use_cache=False,
    )  # fmt: skip
    heard = torch.randn(4, 80, 3000, device=DEVICE)
    words = torch.randint(0, 50000, (4, 128), device=DEVICE)
    return transformers.WhisperForConditionalGeneration(config), {
        "input_features": heard,
        "labels": words,
    }


def of_timm(name: str) -> Callable[[], tuple[nn.Module, Inputs]]:
    """Return what makes a network of timm, which is not everywhere that the other models are."""

    def make() -> tuple[nn.Module, Inputs]:
        return Labelled(import_module("timm").create_model(name)), images(32)

    return make


class Block(nn.Module):
    """Two convolutions with group norms, and a residual connection."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.first_norm = nn.GroupNorm(8, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.second_norm = nn.GroupNorm(8, outputs)
        self.around = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Transform images. x: f[n, inputs, h, w]; the result: f[n, outputs, h, w]."""
        y = F.silu(self.first_norm(self.first(x)))
        return F.silu(self.second_norm(self.second(y))) + self.around(x)


class UNet(nn.Module):
    """Three levels, with bilinear upsampling."""

    def __init__(self, width: int = 64, classes: int = 8) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(
            (Block(width, width), Block(width, 2 * width), Block(2 * width, 4 * width))
        )
        self.up = nn.ModuleList((Block(6 * width, 2 * width), Block(3 * width, width)))
        self.end = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Label each pixel. x: f[n, 3, h, w]; the result: f[n, classes, h, w]."""
        high = self.down[0](self.start(x))
        middle = self.down[1](F.avg_pool2d(high, 2))
        low = self.down[2](F.avg_pool2d(middle, 2))
        middle = self.up[0](torch.cat((self._larger(low), middle), 1))
        return self.end(self.up[1](torch.cat((self._larger(middle), high), 1)))

    @staticmethod
    def _larger(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)


def unet() -> tuple[nn.Module, Inputs]:
    """A U-Net of width 64."""
    labels = torch.randint(0, 8, (8, 128, 128), device=DEVICE)
    pixels = torch.randn(8, 3, 128, 128, device=DEVICE)
    return Labelled(UNet()), {"labels": labels, "pixel_values": pixels}


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += nn.Linear(inputs, outputs), nn.ReLU()
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """A recommender: sums of embeddings, and products of all pairs of them."""

    def __init__(self, bags: int = 16, words: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(words, width, mode="sum") for _ in range(bags))
        self.bottom = _perceptron(13, 512, 256, width)
        self.register_buffer("pairs", torch.tril_indices(bags + 1, bags + 1, -1))
        hidden = _perceptron(width + (bags + 1) * bags // 2, 512, 256)
        self.top = nn.Sequential(hidden, nn.Linear(256, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """Predict. dense: f[n, 13]; sparse: i64[bags, n, words of a bag]; the result: f[n, 1]."""
        x = self.bottom(dense)
        rows = torch.stack([x, *(bag(w) for bag, w in zip(self.bags, sparse, strict=True))], 1)
        products = (rows @ rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat((x, products), 1))


def dlrm() -> tuple[nn.Module, Inputs]:
    """A DLRM of 16 bags."""
    return Labelled(Dlrm()), {
        "labels": torch.rand(4096, 1, device=DEVICE).round(),
        "dense": torch.randn(4096, 13, device=DEVICE),
        "sparse": torch.randint(0, 100_000, (16, 4096, 8), device=DEVICE),
    }


class Autoencoder(nn.Module):
    """Strided and transposed convolutions with batch norms; it draws no random numbers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.BatchNorm2d(width), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 8, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(4, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, pixel_values: Tensor) -> Result:
        """Reproduce images. pixel_values: f[n, 3, h, w]."""
        mean, scale = self.encoder(pixel_values).chunk(2, 1)
        drawn: Any = self.decoder(mean + scale.clamp(-5, 5).exp())
        return Result(loss=F.mse_loss(drawn.float(), pixel_values.float()), logits=drawn)


def autoencoder() -> tuple[nn.Module, Inputs]:
    """A convolutional autoencoder of width 64."""
    return Autoencoder(), {"pixel_values": torch.randn(16, 3, 128, 128, device=DEVICE)}


MODELS: Mapping[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "BERT-base": bert,
    "GPT-2": gpt2,
    "Llama-4x2048": llama,
    "ResNet-50": classifier("ResNet", 32),
    "ConvNeXt-T": classifier("ConvNext", 32),
    "ConvNeXt-T of timm": of_timm("convnext_tiny"),
    "ViT-B": classifier("ViT", 16),
    "Swin-T": classifier("Swin", 16),
    "Qwen3": qwen,
    "T5": t5,
    "Whisper": whisper,
    "EfficientNet-B0 of timm": of_timm("efficientnet_b0"),
    "MobileNetV3 of timm": of_timm("mobilenetv3_large_100"),
    "U-Net": unet,
    "DLRM": dlrm,
    "autoencoder": autoencoder,
}
