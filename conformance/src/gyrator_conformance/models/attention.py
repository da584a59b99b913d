"""Transformers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Model, also, floats, images, tokens
from gyrator_conformance.models.pointwise import SwiGlu
from gyrator_conformance.models.reduction import RmsNorm


def attention_models() -> tuple[Model, ...]:
    """Return the models whose heart is attention."""
    text = tokens(50, 7)
    return (
        Model("vit", "attention", ViT, images(3, 8)),
        Model("swin", "attention", Swin, floats(8, 8, 16)),
        Model("bert", "attention", Bert, text),
        Model("gpt", "attention", Gpt, text),
        Model("llama-kv-cache", "attention", Llama, floats(16), size=1, sizes=(1, 2, 3)),
        Model("t5", "attention", T5, also(text, tokens(50, 5))),
        Model("cross-attention", "attention", Cross, also(floats(6, 16), floats(9, 16))),
        Model("linear-attention", "attention", LinearAttention, floats(10, 16)),
        Model("alibi", "attention", Alibi, floats(8, 16)),
    )


def split(x: Tensor, heads: int) -> Tensor:
    """Return `x` (n, length, width) as (n, heads, length, width / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join(x: Tensor) -> Tensor:
    """Undo `split`."""
    return x.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """A pre-normalised transformer block of width 16 and two heads."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.mixed, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the block's output; `mask` is added to the scores."""
        q, k, v = (split(t, 2) for t in self.mixed(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        x = x + self.out(join(mixed))
        deep: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + deep


class ViT(nn.Module):
    """Patches, a class token, and blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.place = nn.Parameter(torch.randn(1, 5, 16))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.place
        logits: Tensor = self.head(self.blocks(x)[:, 0])
        return logits


class Swin(nn.Module):
    """Attention inside shifted windows of 4 x 4."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x` (n, 8, 8, 16)."""
        x = torch.roll(x, (-2, -2), (1, 2))
        windows = x.unflatten(1, (2, 4)).unflatten(3, (2, 4)).transpose(2, 3)
        y = self.block(windows.reshape(-1, 16, 16)).view(-1, 2, 2, 4, 4, 16)
        return torch.roll(y.transpose(2, 3).reshape(x.shape), (2, 2), (1, 2))


class Bert(nn.Module):
    """Embeddings, bidirectional blocks with a padding mask, and a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(50, 16), nn.Embedding(7, 16)
        self.first, self.second = Block(), Block()
        self.pool = nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the pooled first token; id 0 pads."""
        x = self.word(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        mask = torch.where(ids == 0, -1e4, 0.0).to(x.dtype)[:, None, None, :]
        x = self.second(self.first(x, mask), mask)
        return torch.tanh(self.pool(x[:, 0]))


class Gpt(nn.Module):
    """A causal language model with tied embeddings, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(50, 16)
        self.place = nn.Parameter(torch.randn(7, 16))
        self.blocks = nn.Sequential(Block(causal=True), Block(causal=True))
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of the next token, and the logits."""
        logits = F.linear(self.norm(self.blocks(self.word(ids) + self.place)), self.word.weight)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        return loss, logits


class Llama(nn.Module):
    """One decoding step: rotary positions, grouped heads, a cache written in place."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(16), RmsNorm(16)
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.out, self.deep = nn.Linear(16, 16), SwiGlu(16, 24)
        self.register_buffer("keys", torch.randn(1, 6, 4))
        self.register_buffer("values", torch.randn(1, 6, 4))

    def forward(self, steps: Tensor) -> Tensor:
        """Decode `steps` (n, 16), which follow position 2 of the cache; return hidden states."""
        n = steps.shape[0]
        x = steps.unsqueeze(0)
        y = self.norm1(x)
        q, k, v = split(self.query(y), 4), split(self.key(y), 2), split(self.value(y), 2)
        at = torch.arange(n, device=x.device) + 2
        q, k = rotate(q, at), rotate(k, at)
        with torch.no_grad():
            self.keys.index_copy_(1, at, k[:, 0])
            self.values.index_copy_(1, at, v[:, 0])
        seen = torch.arange(6, device=x.device) <= at.unsqueeze(1)
        scores = q @ self.keys.clone().unsqueeze(1).transpose(-1, -2) / 2
        weight = torch.softmax(scores.masked_fill(~seen, -1e4), -1)
        x = x + self.out(join(weight @ self.values.clone().unsqueeze(1)))
        hidden: Tensor = self.deep(self.norm2(x))
        return hidden + k.mean() + v.mean()


def rotate(x: Tensor, at: Tensor) -> Tensor:
    """Turn pairs of features of `x` (..., length, width) by angles that grow with position."""
    half = x.shape[-1] // 2
    speed = 1.0 / 100 ** (torch.arange(half, device=x.device) / half)
    angle = at.unsqueeze(-1) * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class T5(nn.Module):
    """An encoder and a decoder with relative position biases."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(50, 16)
        self.bias = nn.Embedding(8, 2)
        self.encoder, self.decoder = Block(), Block()
        self.cross = Cross()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the decoder's states."""
        x = self.word(source)
        at = torch.arange(source.shape[1], device=source.device)
        bucket = (at[None] - at[:, None]).clamp(-4, 3) + 4
        x = self.encoder(x, self.bias(bucket).permute(2, 0, 1).unsqueeze(0))
        length = target.shape[1]
        future = torch.ones(length, length, device=x.device, dtype=x.dtype).triu(1) * -1e4
        states: Tensor = self.cross(self.decoder(self.word(target), future), x)
        return states


class Cross(nn.Module):
    """Attention of one sequence to another."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.pair = nn.Linear(16, 16), nn.Linear(16, 32)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Return what `x` (n, a, 16) takes from `other` (n, b, 16)."""
        k, v = (split(t, 4) for t in self.pair(other).chunk(2, -1))
        return x + join(F.scaled_dot_product_attention(split(self.query(x), 4), k, v))


class LinearAttention(nn.Module):
    """Attention with a positive feature map, linear in the length."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        """Return mixed values of the shape of `x`."""
        q, k, v = (split(t, 2) for t in self.mixed(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        total = torch.einsum("nhld,nhle->nhde", k, v)
        scale = torch.einsum("nhld,nhd->nhl", q, k.sum(2)).unsqueeze(-1)
        return join(torch.einsum("nhld,nhde->nhle", q, total) / scale)


class Alibi(nn.Module):
    """Causal attention written out, its scores lowered by distance."""

    slope: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(16, 48)
        self.register_buffer("slope", torch.tensor([0.5, 0.25]).view(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return mixed values of the shape of `x`."""
        q, k, v = (split(t, 2) for t in self.mixed(x).chunk(3, -1))
        at = torch.arange(x.shape[1], device=x.device)
        distance = at[None] - at[:, None]
        scores = q @ k.transpose(-1, -2) * 0.35 + self.slope * distance
        weight = torch.softmax(scores.masked_fill(distance > 0, -1e4), -1)
        return join(weight @ v)
