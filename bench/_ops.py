"""Operations whose kernels `bench/ops.py` times, with what makes their arguments."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

Make = Callable[[], Tensor]


@frozen
class Op:
    """A function of tensors."""

    name: str
    run: Callable[..., Any]
    inputs: tuple[Make, ...]
    trained: bool
    """Its gradients are computed too; it returns a number then."""


def op(name: str, run: Callable[..., Any], *inputs: Make, trained: bool = False) -> Op:
    """Return an operation, by name, function and what makes the arguments."""
    return Op(name, run, inputs, trained)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Make:
    """Return what makes normal numbers."""
    return partial(torch.randn, shape, dtype=dtype)


def uniform(*shape: int) -> Make:
    """Return what makes numbers from 0 to 1."""
    return partial(torch.rand, shape)


def integers(end: int, *shape: int, dtype: torch.dtype = torch.int64) -> Make:
    """Return what makes integers from 0 to `end`, that not included."""
    return partial(torch.randint, 0, end, shape, dtype=dtype)


def flags(*shape: int) -> Make:
    """Return what makes as many true as false elements."""
    return lambda: torch.randn(shape) > 0


def rising(count: int) -> Make:
    """Return what makes numbers in order."""
    return lambda: torch.randn(count).sort()[0]


def _rope(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x[..., :32], x[..., 32:]
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what one step of Adam, written out, makes of moments and parameter."""
    m = m * 0.9 + g * 0.1
    v = v * 0.99 + g * g * 0.01
    return m, v, p - m / (v.sqrt() + 1e-8) * 0.01


def foreach_adam(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return what a step of Adam makes of lists: of each tensor four follow one another, parameter,
    gradient and moments."""
    p, g, m, v = (list(tensors[k::4]) for k in range(4))
    m = torch._foreach_lerp(m, g, 0.1)
    v = torch._foreach_addcmul(torch._foreach_mul(v, 0.99), g, g, 0.01)
    steps = torch._foreach_add(torch._foreach_sqrt(torch._foreach_abs(v)), 1e-8)
    return (*m, *v, *torch._foreach_addcdiv(p, m, steps, -0.01))


def clipped(*gradients: Tensor) -> tuple[Tensor, ...]:
    """Return gradients scaled to a norm of at most 1, all of them together."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))
    return tuple(torch._foreach_mul(list(gradients), (1 / (norm + 1e-6)).clamp(max=1.0)))


OPS = (
    op("adam over lists of 40", foreach_adam, *[normal(256, 256)] * 160),
    op("gradient clipping, 40 tensors", clipped, *[normal(256, 256)] * 40),
    op("60 small results", lambda *xs: tuple(x.tanh() * 2 for x in xs), *[normal(4096)] * 60),
    op("softmax, last axis", lambda x: x.softmax(-1), normal(256, 1024)),
    op("softmax, middle axis", lambda x: x.softmax(1), normal(16, 128, 256)),
    op("logsumexp, first axis", lambda x: x.logsumexp(0), normal(512, 512)),
    op("var mean", lambda x: torch.var_mean(x, (0, 2)), normal(16, 64, 512)),
    op("std, first axis", lambda x: x.std(0), normal(1024, 512)),
    op("sum all", lambda x: (x * x).sum(), normal(1 << 20)),
    op("mean, middle axis", lambda x: x.mean(1), normal(32, 256, 64)),
    op("amax, first axis", lambda x: x.amax(0), normal(1024, 512)),
    op("argmax, last axis", lambda x: x.argmax(-1), normal(512, 1024)),
    op("argmin, first axis", lambda x: x.argmin(0), normal(512, 1024)),
    op("any", lambda x: (x > 3).any(-1), normal(512, 1024)),
    op("prod", lambda x: x.prod(-1), normal(512, 256)),
    op("norm", lambda x: x.norm(dim=-1), normal(512, 1024)),
    op("cumsum, last axis", lambda x: x.cumsum(-1), normal(256, 1024)),
    op("cumsum, first axis", lambda x: x.cumsum(0), normal(1024, 256)),
    op("cumprod", lambda x: x.cumprod(-1), normal(256, 1024)),
    op("cummax", lambda x: x.cummax(-1)[0], normal(256, 512)),
    op("logcumsumexp", lambda x: x.logcumsumexp(-1), normal(128, 512)),
    op("sort", lambda x: x.sort(-1)[0], normal(128, 512)),
    op("topk", lambda x: x.topk(8, -1), normal(256, 512)),
    op("median", lambda x: x.median(-1)[0], normal(128, 512)),
    op("kthvalue", lambda x: x.kthvalue(5, -1)[0], normal(128, 512)),
    op("changes of an int64", lambda x: (x[1:] != x[:-1]).sum(), integers(9, 1 << 18)),
    op("gelu", lambda x: F.gelu(x), normal(1 << 19)),
    op("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), normal(1 << 19)),
    op("silu mul", lambda x, y: F.silu(x) * y, normal(1 << 19), normal(1 << 19)),
    op("trig", lambda x: x.sin() + x.cos() * x.tan(), normal(1 << 18)),
    op("pow", lambda x: x.abs() ** 1.7, normal(1 << 18)),
    op("exp log", lambda x: (x.exp() + 1).log(), normal(1 << 19)),
    op("erfinv", lambda x: (x.tanh() * 0.99).erfinv(), normal(1 << 18)),
    op("lgamma", lambda x: x.abs().lgamma(), normal(1 << 17)),
    op("atan2", lambda x, y: torch.atan2(x, y), normal(1 << 18), normal(1 << 18)),
    op("fmod", lambda x, y: torch.fmod(x, y), normal(1 << 18), normal(1 << 18)),
    op(
        "int64 % and //",
        lambda x, y: x % (y + 1) + x // (y + 1),
        integers(99, 1 << 18),
        integers(9, 1 << 18),
    ),
    op(
        "int64 bits",
        lambda x, y: x & y ^ x << 2 | y >> 1,
        integers(99, 1 << 19),
        integers(9, 1 << 19),
    ),
    op("where", lambda x, y: torch.where(x > y, x * 2, y - 1), normal(1 << 19), normal(1 << 19)),
    op("clamp bf16", lambda x: x.clamp(-1, 1) * 2 + 1, normal(1 << 20, dtype=torch.bfloat16)),
    op("gelu bf16", lambda x: F.gelu(x), normal(1 << 19, dtype=torch.bfloat16)),
    op("softmax bf16", lambda x: x.softmax(-1), normal(256, 1024, dtype=torch.bfloat16)),
    op(
        "layer norm bf16",
        lambda x, w: F.layer_norm(x, (1024,), w),
        normal(256, 1024, dtype=torch.bfloat16),
        normal(1024, dtype=torch.bfloat16),
    ),
    op("float16 a * 2 + 1", lambda x: x * 2 + 1, normal(1 << 20, dtype=torch.float16)),
    op("float64 exp + sin", lambda x: x.exp() + x.sin(), normal(1 << 17, dtype=torch.float64)),
    op("cast chain", lambda x: (x.to(torch.int32) + 1).to(torch.float32) * 0.5, normal(1 << 19)),
    op(
        "bool logic",
        lambda x, y: ((x > 0) & (y < 0) | (x < y)).float(),
        normal(1 << 19),
        normal(1 << 19),
    ),
    op(
        "uint8 image, planes",
        lambda x: (x.float() / 255 - 0.5) / 0.25,
        integers(256, 3, 256, 256, dtype=torch.uint8),
    ),
    op(
        "uint8 image, channels last",
        lambda x: (x.permute(2, 0, 1).float() / 255 - 0.5) / 0.25,
        integers(256, 256, 256, 3, dtype=torch.uint8),
    ),
    op(
        "complex mul",
        lambda x, y: x * y + x.conj(),
        normal(1 << 17, dtype=torch.complex64),
        normal(1 << 17, dtype=torch.complex64),
    ),
    op(
        "layernorm",
        lambda x, w, b: F.layer_norm(x, (768,), w, b),
        normal(512, 768),
        normal(768),
        normal(768),
    ),
    op("rmsnorm", lambda x, w: F.rms_norm(x, (768,), w), normal(512, 768), normal(768)),
    op(
        "groupnorm",
        lambda x, w, b: F.group_norm(x, 8, w, b),
        normal(8, 64, 32, 32),
        normal(64),
        normal(64),
    ),
    op(
        "batchnorm eval",
        lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
        normal(8, 64, 32, 32),
        normal(64),
        uniform(64),
        normal(64),
        normal(64),
    ),
    op(
        "batchnorm train",
        lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)),
        normal(8, 64, 32, 32),
        normal(64),
        normal(64),
    ),
    op("instance norm", lambda x: F.instance_norm(x), normal(8, 32, 32, 32)),
    op("local response norm", lambda x: F.local_response_norm(x, 5), normal(4, 32, 32, 32)),
    op("maxpool", lambda x: F.max_pool2d(x, 3, 2, 1), normal(8, 32, 56, 56)),
    op("avgpool", lambda x: F.avg_pool2d(x, 3, 2, 1), normal(8, 32, 56, 56)),
    op("adaptive avg pool", lambda x: F.adaptive_avg_pool2d(x, 7), normal(8, 32, 56, 56)),
    op("adaptive max pool", lambda x: F.adaptive_max_pool2d(x, 7), normal(4, 32, 28, 28)),
    op(
        "bilinear",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        normal(4, 16, 32, 32),
    ),
    op("nearest", lambda x: F.interpolate(x, scale_factor=2), normal(4, 16, 64, 64)),
    op("bicubic", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), normal(2, 8, 32, 32)),
    op(
        "gridsample", lambda x, g: F.grid_sample(x, g), normal(4, 16, 32, 32), uniform(4, 32, 32, 2)
    ),
    op("pixelshuffle", lambda x: F.pixel_shuffle(x, 2) + 1, normal(4, 64, 32, 32)),
    op("unfold", lambda x: F.unfold(x, 3, padding=1), normal(2, 16, 32, 32)),
    op("fold", lambda x: F.fold(x, (32, 32), 3, padding=1), normal(2, 144, 1024)),
    op("reflectpad", lambda x: F.pad(x, (2, 2, 2, 2), "reflect") * 2, normal(8, 16, 64, 64)),
    op("constpad", lambda x: F.pad(x, (1, 1, 1, 1)) + 1, normal(8, 16, 64, 64)),
    op("transpose", lambda x: x.t().contiguous() + 1, normal(1024, 1024)),
    op("permute", lambda x: x.permute(0, 2, 3, 1).contiguous() * 2, normal(8, 64, 32, 32)),
    op("cat0", lambda x, y: torch.cat([x, y * 2]), normal(512, 512), normal(512, 512)),
    op("cat1", lambda x, y: torch.cat([x, y * 2], 1), normal(512, 500), normal(512, 300)),
    op("stack", lambda x, y: torch.stack([x, y], -1) + 1, normal(512, 512), normal(512, 512)),
    op("roll", lambda x: x.roll(3, -1) + x, normal(512, 1024)),
    op("flip", lambda x: x.flip(-1) + x, normal(512, 1024)),
    op("repeat", lambda x: x.repeat(4, 3) * 2, normal(128, 128)),
    op("repeat_interleave", lambda x: x.repeat_interleave(3, -1) * 2, normal(256, 256)),
    op("tril", lambda x: x.tril() + 1, normal(1024, 1024)),
    op("diag", lambda x: x.diagonal().sum() + torch.diag_embed(x[0]).sum(), normal(512, 512)),
    op(
        "broadcast",
        lambda x, y: (x[:, None] - y[None]).abs().sum(-1),
        normal(128, 32),
        normal(128, 32),
    ),
    op("strided slice", lambda x: x[:, ::2] * 2 + x[:, 1::2], normal(512, 1024)),
    op("rope", _rope, normal(4, 8, 128, 64), normal(128, 32), normal(128, 32)),
    op("embedding", lambda w, i: F.embedding(i, w), normal(5000, 256), integers(5000, 32, 64)),
    op("index", lambda x, i: x[i] * 2, normal(2000, 256), integers(2000, 4096)),
    op(
        "index by two tensors",
        lambda x, i, j: x[i, j],
        normal(500, 500),
        integers(500, 1 << 16),
        integers(500, 1 << 16),
    ),
    op("gather", lambda x, i: x.gather(1, i), normal(512, 512), integers(512, 512, 256)),
    op("take_along", lambda x: torch.take_along_dim(x, x.argsort(-1), -1), normal(64, 256)),
    op(
        "scatter_add",
        lambda x, i, s: x.scatter_add(0, i, s),
        normal(1000, 64),
        integers(1000, 4096, 64),
        normal(4096, 64),
    ),
    op(
        "index_add",
        lambda x, i, s: x.index_add(0, i, s),
        normal(1000, 64),
        integers(1000, 4096),
        normal(4096, 64),
    ),
    op(
        "index_put",
        lambda x, i, s: torch.index_put(x, (i,), s, True),
        normal(1000, 64),
        integers(1000, 4096),
        normal(4096, 64),
    ),
    op(
        "scatter",
        lambda x, i, s: x.scatter(1, i, s),
        normal(512, 512),
        integers(512, 512, 128),
        normal(512, 128),
    ),
    op("masked_fill", lambda x, m: x.masked_fill(m, 0) + 1, normal(1024, 512), flags(1024, 512)),
    op("onehot", lambda i: F.one_hot(i, 100).float(), integers(100, 4096)),
    op("bucketize", lambda x, b: torch.bucketize(x, b), normal(1 << 16), rising(64)),
    op("cross entropy", lambda x, t: F.cross_entropy(x, t), normal(512, 1000), integers(1000, 512)),
    op(
        "bce",
        lambda x, t: F.binary_cross_entropy_with_logits(x, t),
        normal(1 << 18),
        uniform(1 << 18),
    ),
    op(
        "kl",
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        normal(256, 512),
        normal(256, 512),
    ),
    op("huber", lambda x, y: F.huber_loss(x, y), normal(1 << 18), normal(1 << 18)),
    op("cosine", lambda x, y: F.cosine_similarity(x, y, -1), normal(512, 512), normal(512, 512)),
    op(
        "distances",
        lambda x, y: ((x[:, None] - y) ** 2).sum(-1).sqrt(),
        normal(100, 64),
        normal(100, 64),
    ),
    op("histc", lambda x: torch.histc(x, 32), normal(1 << 16)),
    op("mm small", lambda x, y: F.relu(x @ y), normal(32, 32), normal(32, 32)),
    op("bmm small", lambda x, y: (x @ y).softmax(-1), normal(64, 16, 16), normal(64, 16, 16)),
    op(
        "linear gelu",
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        normal(256, 256),
        normal(512, 256),
        normal(512),
    ),
    op("mv", lambda x, y: x @ y + 1, normal(1024, 1024), normal(1024)),
    op("outer", lambda x, y: torch.outer(x, y) + 1, normal(1024), normal(1024)),
    op(
        "einsum",
        lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b),
        normal(2, 4, 64, 32),
        normal(2, 4, 64, 32),
    ),
    op(
        "sdpa",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        normal(2, 4, 128, 32),
        normal(2, 4, 128, 32),
        normal(2, 4, 128, 32),
    ),
    op(
        "sdpa causal",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        normal(2, 4, 128, 32),
        normal(2, 4, 128, 32),
        normal(2, 4, 128, 32),
    ),
    op(
        "manual attn",
        lambda q, k, v: (q @ k.transpose(-1, -2) * 0.17).softmax(-1) @ v,
        normal(2, 4, 128, 32),
        normal(2, 4, 128, 32),
        normal(2, 4, 128, 32),
    ),
    op(
        "conv relu",
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        normal(4, 16, 32, 32),
        normal(32, 16, 3, 3),
        normal(32),
    ),
    op(
        "dwconv",
        lambda x, w: F.silu(F.conv2d(x, w, None, 1, 1, 1, 32)),
        normal(4, 32, 32, 32),
        normal(32, 1, 3, 3),
    ),
    op("conv1d", lambda x, w: F.conv1d(x, w, padding=2), normal(4, 32, 256), normal(32, 32, 5)),
    op(
        "int mm",
        lambda x, y: torch._int_mm(x, y).float() * 0.1,
        integers(100, 64, 64, dtype=torch.int8),
        integers(100, 64, 64, dtype=torch.int8),
    ),
    op("fft", lambda x: torch.fft.rfft(x).abs(), normal(64, 512)),
    op("dropout", lambda x: F.dropout(x, 0.5), normal(1 << 19)),
    op("randn", lambda x: x + torch.randn_like(x), normal(1 << 18)),
    op("adam", adam, normal(1 << 18), normal(1 << 18), normal(1 << 18), uniform(1 << 18)),
    op("20 small tensors", lambda *t: [a * 2 + 1 for a in t], *[normal(64, 64)] * 20),
    op("nanmean", lambda x: x.nanmean(-1), normal(512, 512)),
    op("one of the sorted", lambda x: x.sort(-1)[0][:, 100], normal(128, 256)),
    op("tril, few long rows", lambda x: x.tril(), normal(8, 1 << 17)),
    op("var mean, first axis", lambda x: torch.var_mean(x, 0), normal(1024, 1024)),
    op("count nonzero", lambda x: x.count_nonzero(-1), flags(1024, 1024)),
    op(
        "cumsum float16, long rows", lambda x: x.cumsum(-1), normal(8, 100_000, dtype=torch.float16)
    ),
    op("cumsum bf16, long rows", lambda x: x.cumsum(-1), normal(8, 100_000, dtype=torch.bfloat16)),
    op("cumsum, short rows", lambda x: x.cumsum(-1), normal(1 << 16, 16)),
    op("sort, short rows", lambda x: x.sort(-1)[0], normal(1 << 14, 16)),
    op("renorm", lambda x: x.renorm(2, 0, 1.0), normal(512, 512)),
    op("rot90", lambda x: x.rot90(), normal(1024, 1024)),
    op("float64 tan", lambda x: x.tan(), normal(100_000, dtype=torch.float64)),
    op("float64 lgamma", lambda x: x.lgamma(), normal(100_000, dtype=torch.float64)),
    op("int8 sum", lambda x: x.sum(-1), integers(99, 512, 1024, dtype=torch.int8)),
    op("angle", lambda x: x.angle(), normal(1 << 17)),
    op("float64 of columns", lambda x, y: x.t() + y, *[normal(316, 316, dtype=torch.float64)] * 2),
    op(
        "uint8 of columns",
        lambda x: x.permute(0, 2, 1).contiguous(),
        integers(256, 10, 105, 105, dtype=torch.uint8),
    ),
    op(
        "tril bf16, few long rows",
        lambda x: x.tril(),
        normal(8, 1 << 17, dtype=torch.bfloat16),
    ),
    op("int64 cumsum", lambda x: x.cumsum(-1), integers(99, 316, 316)),
    op("int64 sort of one row", lambda x: x.sort(-1), integers(99, 100_000)),
    op("logcumsumexp of one row", lambda x: x.logcumsumexp(0), normal(100_000)),
    op("log_ndtr", lambda x: torch.special.log_ndtr(x), normal(100_000)),
    op(
        "bicubic uint8",
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        integers(256, 4, 16, 20, 20, dtype=torch.uint8),
    ),
    op("complex div", lambda x, y: x / y, *[normal(100_000, dtype=torch.complex64)] * 2),
    op("searchsorted", lambda b, x: torch.searchsorted(b, x), rising(1000), normal(100_000)),
    op(
        "scatter_reduce amax",
        lambda x, i, s: x.scatter_reduce(0, i, s, "amax"),
        normal(1000, 64),
        integers(1000, 4096, 64),
        normal(4096, 64),
    ),
    op("cdist", lambda x, y: torch.cdist(x, y, p=1.0), normal(256, 16), normal(256, 16)),
    op("avg pool of volumes", lambda x: F.avg_pool3d(x, 3, 2, 1), normal(2, 16, 20, 20, 20)),
    op(
        "area resizing",
        lambda x: F.interpolate(x, size=(20, 20), mode="area"),
        normal(4, 16, 50, 50),
    ),
    op(
        "layer norm, with gradients",
        lambda x, w, b: F.layer_norm(x, (768,), w, b).square().sum(),
        normal(256, 768),
        normal(768),
        normal(768),
        trained=True,
    ),
    op(
        "softmax, with gradients",
        lambda x: (x.softmax(-1) * x).sum(),
        normal(256, 512),
        trained=True,
    ),
    op(
        "maxpool, with gradients",
        lambda x: F.max_pool2d(x, 3, 2, 1).square().sum(),
        normal(4, 32, 56, 56),
        trained=True,
    ),
    op(
        "avgpool, with gradients",
        lambda x: F.avg_pool2d(x, 3, 2, 1).square().sum(),
        normal(4, 32, 56, 56),
        trained=True,
    ),
    op(
        "bilinear, with gradients",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear").square().sum(),
        normal(4, 16, 32, 32),
        trained=True,
    ),
    op(
        "gridsample, with gradients",
        lambda x, g: F.grid_sample(x, g).square().sum(),
        normal(4, 16, 32, 32),
        normal(4, 32, 32, 2),
        trained=True,
    ),
    op(
        "embedding, with gradients",
        lambda w, i: F.embedding(i, w).square().sum(),
        normal(5000, 64),
        integers(5000, 32, 64),
        trained=True,
    ),
    op(
        "cumsum, with gradients",
        lambda x: x.cumsum(-1).square().sum(),
        normal(256, 512),
        trained=True,
    ),
    op(
        "group norm, with gradients",
        lambda x, w, b: F.group_norm(x, 8, w, b).square().sum(),
        normal(8, 64, 32, 32),
        normal(64),
        normal(64),
        trained=True,
    ),
    op(
        "batch norm, with gradients",
        lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)).square().sum(),
        normal(8, 64, 32, 32),
        normal(64),
        normal(64),
        trained=True,
    ),
    op(
        "unfold, with gradients",
        lambda x: F.unfold(x, 3, padding=1).square().sum(),
        normal(2, 16, 32, 32),
        trained=True,
    ),
    op(
        "gather, with gradients",
        lambda x, i: x.gather(1, i).square().sum(),
        normal(512, 512),
        integers(512, 512, 256),
        trained=True,
    ),
    op(
        "conv, with gradients",
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)).sum(),
        normal(4, 16, 32, 32),
        normal(32, 16, 3, 3),
        normal(32),
        trained=True,
    ),
    op("prod, with gradients", lambda x: x.prod(-1).sum(), normal(512, 64), trained=True),
    op(
        "adaptive avg pool, with gradients",
        lambda x: F.adaptive_avg_pool2d(x, 7).square().sum(),
        normal(8, 32, 50, 50),
        trained=True,
    ),
    op(
        "cumprod, with gradients",
        lambda x: x.cumprod(-1).sum(),
        normal(1000, 100),
        trained=True,
    ),
    op("cummax, with gradients", lambda x: x.cummax(-1)[0].sum(), normal(1000, 100), trained=True),
    op("topk, with gradients", lambda x: x.topk(5)[0].sum(), normal(1000, 100), trained=True),
    op(
        "padding, with gradients",
        lambda x: F.pad(x, (3, 3, 3, 3)).sum(),
        normal(4, 16, 50, 50),
        trained=True,
    ),
    op(
        "cross entropy, with gradients",
        lambda x, t: F.cross_entropy(x, t),
        normal(512, 1000),
        integers(1000, 512),
        trained=True,
    ),
    op(
        "instance norm, with gradients",
        lambda x: F.instance_norm(x).square().sum(),
        normal(8, 32, 32, 32),
        trained=True,
    ),
    op(
        "adaptive avg pool of volumes, with gradients",
        lambda x: F.adaptive_avg_pool3d(x, 7).square().sum(),
        normal(2, 16, 20, 20, 20),
        trained=True,
    ),
    op(
        "even adaptive avg pool, with gradients",
        lambda x: F.adaptive_avg_pool2d(x, 7).square().sum(),
        normal(8, 32, 56, 56),
        trained=True,
    ),
)
