"""Operations and small fusions that `bench/ops.py --device cuda` times, in any size."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from _ops import adam, clipped, foreach_adam
from attrs import evolve, frozen
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

N = -1
"""The extent that grows with the size of a case."""
DEVICE = "cuda"


@frozen
class Operand:
    """A tensor to be made: its extents, one of which may be `N`, and what fills it."""

    shape: tuple[int, ...]
    fill: Callable[[tuple[int, ...], torch.dtype], Any]
    trained: bool = False

    @property
    def unit(self) -> int:
        """How many elements `N` counts; 0 where it is not among the extents."""
        return math.prod(s for s in self.shape if s != N) if N in self.shape else 0

    def make(self, extent: int, dtype: torch.dtype) -> Any:
        """Make it; `dtype` is what floating-point operands of no other type have."""
        return self.fill(tuple(extent if s == N else s for s in self.shape), dtype)


@frozen
class GpuOp:
    """A function of tensors."""

    name: str
    run: Callable[..., Any]
    operands: tuple[Operand, ...]
    trained: bool
    """Its gradients are computed too."""
    unit: int
    """How many elements `N` counts: of the operands, or of the results where these are larger."""

    def extent(self, elements: int) -> int:
        """Return the `N` by which it works on about so many elements."""
        return max(1, elements // self.unit)


def normal(*shape: int) -> Operand:
    """Normal numbers, whose gradients may be asked for."""
    return Operand(shape, lambda s, d: torch.randn(s, device=DEVICE, dtype=d), trained=True)


def single(*shape: int) -> Operand:
    """Normal numbers in float32 whatever the other operands have."""
    return Operand(shape, lambda s, _: torch.randn(s, device=DEVICE), trained=True)


def constant(*shape: int) -> Operand:
    """Normal numbers that get no gradients."""
    return Operand(shape, lambda s, d: torch.randn(s, device=DEVICE, dtype=d))


def positive(*shape: int) -> Operand:
    """Numbers from 0 to 1 that get no gradients."""
    return Operand(shape, lambda s, d: torch.rand(s, device=DEVICE).to(d))


def last(*shape: int) -> Operand:
    """Normal numbers, channels last."""

    def fill(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        x = torch.randn(sizes, device=DEVICE, dtype=dtype)
        return x.to(memory_format=torch.channels_last)

    return Operand(shape, fill, trained=True)


def integers(end: int, *shape: int, dtype: torch.dtype = torch.int64) -> Operand:
    """Integers from 0 to `end`, that not included."""
    return Operand(shape, lambda s, _: torch.randint(0, end, s, device=DEVICE, dtype=dtype))


def places(*shape: int) -> Operand:
    """Integers from 0 to the first extent, that not included."""
    return Operand(shape, lambda s, _: torch.randint(0, s[0], s, device=DEVICE))


def flags(*shape: int) -> Operand:
    """As many true as false elements."""
    return Operand(shape, lambda s, _: torch.randn(s, device=DEVICE) > 0)


OPS: list[GpuOp] = []


def forward(name: str, run: Callable[..., Any], *operands: Operand, unit: int = 0) -> None:
    """List an operation."""
    OPS.append(GpuOp(name, run, operands, False, unit or sum(o.unit for o in operands)))


def both(name: str, run: Callable[..., Any], *operands: Operand, unit: int = 0) -> None:
    """List an operation, and the same with its gradients."""
    forward(name, run, *operands, unit=unit)
    OPS.append(evolve(OPS[-1], name=f"{name}, with gradients", trained=True))


# ---------------------------------------------------------------- rows and norms

for columns in (128, 1024, 8192, 32768):
    both(f"softmax, {columns} columns", lambda x: x.softmax(-1), normal(N, columns))
both("softmax, middle axis", lambda x: x.softmax(1), normal(N, 128, 256))
forward("log softmax, 50257 columns", lambda x: x.log_softmax(-1), normal(N, 50257))
for columns in (256, 1024, 8192):
    both(
        f"layer norm, {columns} columns",
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        normal(N, columns), normal(columns), normal(columns),
    )  # fmt: skip
    both(
        f"RMS norm, {columns} columns",
        lambda x, w: F.rms_norm(x, x.shape[-1:], w),
        normal(N, columns), normal(columns),
    )  # fmt: skip


def _add_norm(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    z = x + y
    return z, F.layer_norm(z, z.shape[-1:], w, b)


def _norm_quantised(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = x + y
    found = F.rms_norm(z, z.shape[-1:], w)
    return (z, *_fp8_rows(found))


def _fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448.0
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def _int8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 127.0
    return (x.float() / scale).round().clamp(-128, 127).to(torch.int8), scale


both(
    "residual + layer norm", _add_norm, normal(N, 1024), normal(N, 1024), normal(1024), normal(1024)
)
forward(
    "residual + RMS norm + fp8 rows",
    _norm_quantised,
    normal(N, 4096),
    normal(N, 4096),
    normal(4096),
)
forward("fp8 rows", _fp8_rows, normal(N, 4096))
forward("int8 rows", _int8_rows, normal(N, 4096))


def _group_norm(groups: int) -> Callable[..., Tensor]:
    return lambda x, w, b: F.silu(F.group_norm(x, groups, w, b))


for shape, groups in (((N, 64, 32, 32), 8), ((2, 320, 64, N), 32), ((N, 512, 8, 8), 32)):
    both(
        f"group norm, {groups} groups of {'x'.join('N' if s == N else str(s) for s in shape)}",
        _group_norm(groups),
        normal(*shape), normal(shape[1]), normal(shape[1]),
    )  # fmt: skip
for kind, name in ((normal, "planes"), (last, "channels last")):
    both(
        f"batch norm + relu in training, {name}",
        lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)),
        kind(N, 64, 56, 56), single(64), single(64),
    )  # fmt: skip
forward(
    "batch norm + relu in inference",
    lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
    normal(N, 64, 56, 56), constant(64), positive(64), normal(64), normal(64),
)  # fmt: skip
both("instance norm", lambda x: F.instance_norm(x), normal(N, 32, 64, 64))
both("unit length", lambda x: F.normalize(x, dim=-1), normal(N, 512))
both("variance and mean of columns", lambda x: torch.var_mean(x, (0, 2)), normal(N, 64, 512))

# ---------------------------------------------------------------- reductions and scans

both("sum of squares of all", lambda x: (x * x).sum(), normal(N))
both("sum of rows", lambda x: x.exp().sum(-1), normal(N, 1024))
both("sum of columns", lambda x: x.exp().sum(0), normal(N, 1024))
both("sum of a middle axis", lambda x: x.exp().sum(1), normal(N, 256, 64))
both("mean of planes", lambda x: F.relu(x).mean((2, 3)), normal(N, 256, 14, 14))
forward("sum of few long rows", lambda x: (x * x).sum(-1), normal(16, N))
forward("maximum of rows", lambda x: x.amax(-1), normal(N, 1024))
forward("argmax, 1024 columns", lambda x: x.argmax(-1), normal(N, 1024))
forward("argmax, 128256 columns", lambda x: x.argmax(-1), normal(N, 128256))
forward("argmin of columns", lambda x: x.argmin(0), normal(N, 1024))
forward("any", lambda x: (x > 3).any(-1), normal(N, 1024))
forward("number of positives", lambda x: (x > 0).sum(), normal(N))
both("product of rows", lambda x: x.prod(-1), normal(N, 256))
both("log-sum-exp of 50257 columns", lambda x: x.logsumexp(-1), normal(N, 50257))
forward("log-sum-exp of columns", lambda x: x.logsumexp(0), normal(N, 512))
both("norm of rows", lambda x: x.norm(dim=-1), normal(N, 1024))
both("cumulative sum of rows", lambda x: x.cumsum(-1), normal(N, 1024))
forward("cumulative sum of columns", lambda x: x.cumsum(0), normal(N, 1024))
forward("cumulative sum of one long row", lambda x: x.cumsum(0), normal(N))
forward("cumulative product", lambda x: x.cumprod(-1), normal(N, 1024))
forward("cumulative maximum", lambda x: x.cummax(-1)[0], normal(N, 512))
forward("cumulative log-sum-exp", lambda x: x.logcumsumexp(-1), normal(N, 512))
forward("sort of 512 columns", lambda x: x.sort(-1)[0], normal(N, 512))
forward("top 8 of 128 columns", lambda x: x.softmax(-1).topk(8, -1), normal(N, 128))

# ---------------------------------------------------------------- losses

for columns in (1000, 32000, 128256):
    both(
        f"cross entropy, {columns} columns",
        lambda x, t: F.cross_entropy(x.float(), t),
        normal(N, columns), integers(1000, N),
    )  # fmt: skip
both(
    "cross entropy with smoothing",
    lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
    normal(N, 1000), integers(1000, N),
)  # fmt: skip
both(
    "binary cross entropy",
    lambda x, t: F.binary_cross_entropy_with_logits(x, t),
    normal(N),
    positive(N),
)
both(
    "Kullback-Leibler",
    lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    normal(N, 4096), constant(N, 4096),
)  # fmt: skip
both("mean squared error", lambda x, y: F.mse_loss(x, y), normal(N), constant(N))
both("Huber", lambda x, y: F.huber_loss(x, y), normal(N), constant(N))
both(
    "cosine similarity", lambda x, y: F.cosine_similarity(x, y, -1), normal(N, 512), normal(N, 512)
)

# ---------------------------------------------------------------- element by element

both("x * 2 + y", lambda x, y: x * 2 + y, normal(N), normal(N))
both("gelu", lambda x: F.gelu(x), normal(N))
both("gelu with tanh", lambda x: F.gelu(x, approximate="tanh"), normal(N))
both("silu times", lambda x, y: F.silu(x) * y, normal(N), normal(N))


def _swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


both("silu of one half times the other", _swiglu, normal(N, 8192))
both(
    "bias + gelu + dropout",
    lambda x, b: F.dropout(F.gelu(x + b), 0.1),
    normal(N, 4096),
    normal(4096),
)
both("dropout", lambda x: F.dropout(x, 0.1), normal(N))
both("residual + dropout", lambda x, y: x + F.dropout(y, 0.1), normal(N), normal(N))
both("relu squared", lambda x: F.relu(x).square(), normal(N))
both(
    "leaky relu + bias of channels",
    lambda x, b: F.leaky_relu(x + b[:, None, None]),
    normal(N, 64, 32, 32),
    normal(64),
)
both("mish", lambda x: F.mish(x), normal(N))
forward("hardswish", lambda x: F.hardswish(x), normal(N))
forward("exp and log", lambda x: (x.exp() + 1).log(), normal(N))
forward("power", lambda x: x.abs() ** 1.7, normal(N))
forward("sines", lambda x: x.sin() + x.cos() * x.tan(), normal(N))
forward("inverse error function", lambda x: (x.tanh() * 0.99).erfinv(), normal(N))
forward("where", lambda x, y: torch.where(x > y, x * 2, y - 1), normal(N), normal(N))
forward("cast to float32", lambda x: x.float() * 0.5, normal(N))
forward("cast to fp8", lambda x: x.to(torch.float8_e4m3fn), normal(N))
forward("int64 division", lambda x, y: x % (y + 1) + x // (y + 1), integers(99, N), integers(9, N))
forward(
    "image of bytes",
    lambda x: (x.float() / 255 - 0.5) / 0.25,
    integers(256, N, 3, 224, 224, dtype=torch.uint8),
)
forward("noise", lambda x: x + torch.randn_like(x), normal(N))
forward("uniform noise", lambda x: x * torch.rand_like(x), normal(N))


def _many(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.tanh() * 2 for x in tensors)


forward("Adam", adam, *[constant(N)] * 3, positive(N))
forward("Adam of 40 tensors", foreach_adam, *[constant(16, N)] * 160)
forward("gradient clipping of 40 tensors", clipped, *[constant(16, N)] * 40)
forward(
    "moving averages of 40 tensors",
    lambda *t: torch._foreach_lerp(list(t[:40]), list(t[40:]), 0.1),
    *[constant(16, N)] * 80,
)
forward("60 results", _many, *[constant(16, N)] * 60)

# ---------------------------------------------------------------- layout

forward("transpose + add", lambda x, y: x.t() + y, normal(1024, N), normal(N, 1024))
forward(
    "planes to channels last",
    lambda x: x.permute(0, 2, 3, 1).contiguous() * 2,
    normal(N, 64, 56, 56),
)
forward(
    "heads apart",
    lambda x: x.view(x.shape[0], 512, 16, 64).transpose(1, 2).contiguous() * 2,
    normal(N, 512, 1024),
)
both("cat of rows", lambda x, y: torch.cat([x, y * 2]), normal(N, 512), normal(N, 512))
both("cat of columns", lambda x, y: torch.cat([x, y * 2], 1), normal(N, 512), normal(N, 320))
both(
    "cat of three channels",
    lambda x, y, z: F.relu(torch.cat([x, y, z], 1)),
    normal(N, 64, 28, 28),
    normal(N, 32, 28, 28),
    normal(N, 96, 28, 28),
)
both("stack of pairs", lambda x, y: torch.stack([x, y], -1) + 1, normal(N, 512), normal(N, 512))
forward("roll", lambda x: x.roll(3, -1) + x, normal(N, 1024))
forward("flip", lambda x: x.flip(-1) + x, normal(N, 1024))
forward("repeat", lambda x: x.repeat(4, 3) * 2, normal(N, 128), unit=12 * 128)
both(
    "heads repeated",
    lambda x: x.repeat_interleave(4, 1) * 2,
    normal(N, 8, 128, 64),
    unit=4 * 8 * 128 * 64,
)
both("zeros around", lambda x: F.pad(x, (1, 1, 1, 1)) + 1, normal(N, 16, 64, 64))
both("mirrored around", lambda x: F.pad(x, (2, 2, 2, 2), "reflect") * 2, normal(N, 16, 64, 64))
forward("lower triangle", lambda x: x.tril() + 1, normal(N, 1024, 1024))
forward("even and odd columns", lambda x: x[:, ::2] * 2 + x[:, 1::2], normal(N, 1024))
both("pixel shuffle", lambda x: F.pixel_shuffle(x, 2) + 1, normal(N, 64, 32, 32))
both("unfold", lambda x: F.unfold(x, 3, padding=1), normal(N, 16, 32, 32), unit=9 * 16 * 32 * 32)
forward("fold", lambda x: F.fold(x, (32, 32), 3, padding=1), normal(N, 144, 1024))


def _windows(x: Tensor) -> Tensor:
    n, h, w, c = x.shape
    x = x.roll((-3, -3), (1, 2)).view(n, h // 7, 7, w // 7, 7, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


both("shifted windows", _windows, normal(N, 56, 56, 96))


def _rope(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * c + torch.cat((-high, low), -1) * s


def _rope_pairs(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2)


def _rope_complex(x: Tensor, turn: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return (
        torch.view_as_real(pairs * torch.polar(torch.ones_like(turn), turn)).flatten(-2).to(x.dtype)
    )


both(
    "rotary embedding, halves", _rope, normal(N, 16, 512, 64), constant(512, 64), constant(512, 64)
)
both(
    "rotary embedding, pairs",
    _rope_pairs,
    normal(N, 16, 512, 64),
    constant(512, 32),
    constant(512, 32),
)
forward(
    "rotary embedding, complex",
    _rope_complex,
    normal(N, 16, 512, 64),
    Operand((512, 32), lambda s, _: torch.randn(s, device=DEVICE)),
)

# ---------------------------------------------------------------- places

both(
    "embedding",
    lambda i, w: F.embedding(i, w),
    integers(32000, N, 16),
    normal(32000, 1024),
    unit=16 * 1024,
)


def _embedded(i: Tensor, w: Tensor, p: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(i, w) + p, g.shape, g, b)


both(
    "embedding + position + norm",
    _embedded,
    integers(30522, N, 128),
    normal(30522, 768),
    normal(128, 768),
    normal(768),
    normal(768),
    unit=128 * 768,
)
forward(
    "sums of bags",
    lambda i, w: F.embedding(i, w).sum(1),
    integers(100000, N, 20),
    normal(100000, 64),
    unit=20 * 64,
)
both("rows by index", lambda x, i: x[i] * 2, normal(N, 256), places(N))
forward(
    "elements by two indices", lambda x, i, j: x[i, j], normal(N, 512), places(N), integers(512, N)
)
both("gather", lambda x, i: x.gather(1, i), normal(N, 512), integers(512, N, 256))
forward(
    "scatter",
    lambda x, i, s: x.scatter(1, i, s),
    normal(N, 512),
    integers(512, N, 128),
    normal(N, 128),
)
forward(
    "scatter with sums",
    lambda x, i, s: x.scatter_add(1, i, s),
    normal(N, 512),
    integers(512, N, 128),
    normal(N, 128),
)
forward(
    "sums by index", lambda x, i, s: x.index_add(0, i, s), normal(N, 64), places(N), normal(N, 64)
)
forward(
    "sums at places",
    lambda x, i, s: x.index_put((i,), s, True),
    normal(N, 64),
    places(N),
    normal(N, 64),
)
forward("masked fill", lambda x, m: x.masked_fill(m, 0) + 1, normal(N, 512), flags(N, 512))
forward("one-hot", lambda i: F.one_hot(i, 128).float(), integers(128, N), unit=128)
forward(
    "buckets", lambda x: torch.bucketize(x, torch.linspace(-3, 3, 64, device=DEVICE)), normal(N)
)

# ---------------------------------------------------------------- pooling and resampling

for kind, name in ((normal, "planes"), (last, "channels last")):
    both(f"max pooling, {name}", lambda x: F.max_pool2d(x, 3, 2, 1), kind(N, 64, 56, 56))
both("average pooling", lambda x: F.avg_pool2d(x, 3, 2, 1), normal(N, 64, 56, 56))
both("adaptive average pooling", lambda x: F.adaptive_avg_pool2d(x, 7), normal(N, 64, 28, 28))
both(
    "bilinear, twice",
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    normal(N, 32, 32, 32),
)
both("nearest, twice", lambda x: F.interpolate(x, scale_factor=2), normal(N, 32, 32, 32))
forward(
    "bicubic, twice",
    lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    normal(N, 8, 32, 32),
)
both(
    "sampling at a grid",
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    normal(N, 16, 32, 32),
    normal(N, 32, 32, 2),
)

# ---------------------------------------------------------------- products and convolutions

both(
    "linear + gelu",
    lambda x, w, b: F.gelu(F.linear(x, w, b)),
    normal(N, 1024),
    normal(4096, 1024),
    normal(4096),
)
both(
    "linear + residual",
    lambda x, w, b, y: y + F.linear(x, w, b),
    normal(N, 1024),
    normal(1024, 1024),
    normal(1024),
    normal(N, 1024),
)
both(
    "SwiGLU layer",
    lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d),
    normal(N, 1024),
    normal(2816, 1024),
    normal(2816, 1024),
    normal(1024, 2816),
)
forward("relu of a product", lambda x, y: F.relu(x @ y), normal(N, 1024), normal(1024, 1024))
forward("thin product", lambda w, x: F.linear(x, w), normal(N, 2048), normal(1, 2048))
forward("product with a vector", lambda x, y: x @ y + 1, normal(N, 2048), normal(2048))
forward(
    "softmax of small products",
    lambda x, y: (x @ y).softmax(-1),
    normal(N, 32, 32),
    normal(N, 32, 32),
)
forward("outer product", lambda x, y: torch.outer(x, y) + 1, normal(N), normal(1024), unit=1024)
both(
    "1x1 convolution + relu",
    lambda x, w, b: F.relu(F.conv2d(x, w, b)),
    last(N, 64, 28, 28),
    last(128, 64, 1, 1),
    normal(128),
)
both(
    "3x3 convolution + norm + relu",
    lambda x, w, g, b: F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, g, b, True)),
    last(N, 64, 28, 28),
    last(64, 64, 3, 3),
    single(64),
    single(64),
)
both(
    "depthwise convolution + silu",
    lambda x, w: F.silu(F.conv2d(x, w, None, 1, 3, 1, 96)),
    normal(N, 96, 28, 28),
    normal(96, 1, 7, 7),
)
forward(
    "convolution of one axis",
    lambda x, w: F.conv1d(x, w, padding=2),
    normal(N, 64, 256),
    normal(64, 64, 5),
)

# ---------------------------------------------------------------- attention

HEADS = (N, 8, 512, 64)
both("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *[normal(*HEADS)] * 3)
both(
    "causal attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    *[normal(*HEADS)] * 3,
)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2) * 0.125).float().softmax(-1)
    return scores.to(v.dtype) @ v


def _masked(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2) * 0.125).masked_fill(m, -1e4).float().softmax(-1)
    return scores.to(v.dtype) @ v


both("attention by hand", _attention, *[normal(*HEADS)] * 3)
both("attention by hand with a mask", _masked, *[normal(*HEADS)] * 3, flags(512, 512))


def _causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def _sloped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + (k - q) * torch.exp2(-(h + 1.0))


def _flexible(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
    return flex_attention(q, k, v, block_mask=mask)


def _blocks(shape: tuple[int, ...], _: torch.dtype) -> Any:
    return create_block_mask(_causal, None, None, *shape, DEVICE)


both("flexible attention, causal", _flexible, *[normal(*HEADS)] * 3, Operand((512, 512), _blocks))
both(
    "flexible attention, sloped",
    lambda q, k, v: flex_attention(q, k, v, _sloped),
    *[normal(*HEADS)] * 3,
)


def chosen(words: Sequence[str]) -> list[GpuOp]:
    """Return the operations whose names have one of the words."""
    return [o for o in OPS if any(w in o.name for w in words)]
