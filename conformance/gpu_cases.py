"""Cases of `gpu.py`: functions and fresh inputs on the device."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from attrs import field, frozen

Make = Callable[[torch.dtype], tuple[Any, ...]]
D = "cuda"
FLOATS = ("f32", "bf16")


@frozen(kw_only=True)
class Case:
    """A function, and what makes its arguments."""

    name: str
    run: Callable[..., Any]
    inputs: Make
    more: tuple[Make, ...] = ()
    """Further arguments for the same compiled function."""
    dtypes: tuple[str, ...] = FLOATS
    dynamic: bool = False
    exact: bool = True
    """It can run in float64 for reference."""
    options: Mapping[str, Any] = field(factory=dict)


def r(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Make:
    """Return what makes one tensor of normal numbers."""
    return lambda dtype: ((torch.randn(shape, device=D) * scale + shift).to(dtype),)


def rs(*shapes: tuple[int, ...]) -> Make:
    """Return what makes several tensors."""
    return lambda dtype: tuple(torch.randn(s, device=D).to(dtype) for s in shapes)


def index(n: int, *shape: int) -> torch.Tensor:
    """Return indices below n."""
    return torch.randint(0, n, shape, device=D)


_UNARY = (
    "sin cos tanh exp expm1 log1p sigmoid relu erf rsqrt sqrt abs neg floor round sign atan "
    "reciprocal exp2 log2 sinh asinh trunc"
).split()


def _unary(x: torch.Tensor) -> list[torch.Tensor]:
    positive = x.abs() + 0.1
    return [getattr(torch, name)(positive) for name in _UNARY]


def _activations(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.elu(x), F.softplus(x),
        F.hardswish(x), F.leaky_relu(x), F.mish(x), torch.clamp(x, -0.5, 0.5),
    ]  # fmt: skip


def _reductions(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        x.sum(-1), x.mean(0), x.amax(-1), x.amin(0), x.var(-1), x.std(0), x.sum(),
        x.argmax(-1), x.argmin(0), (x > 0).any(-1), (x > 0).all(0), x.logsumexp(-1),
        torch.linalg.vector_norm(x, dim=-1), x.cumsum(-1), x[:, :6].prod(-1),
    ]  # fmt: skip


def _integers(x: torch.Tensor) -> list[torch.Tensor]:
    i = (x * 100).to(torch.int32)
    j = i.to(torch.int64) * 3 + 1
    return [i + j, i * 2, j // 7, j % 7, i & 15, i << 2, i.float(), (j > 5) ^ (i > 2), j.sum(-1)]


def _scatter(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
    base = torch.zeros(50, s.shape[1], dtype=torch.float32, device=x.device)
    rows = i[: s.shape[0]]
    added = base.to(s.dtype).index_add(0, rows, s)
    put = base.to(s.dtype).index_put((rows,), s, accumulate=True)
    return [added, put, x.gather(0, i[:, None].expand(-1, x.shape[1]) % x.shape[0])]


def _mixed(x: torch.Tensor, scalar: torch.Tensor) -> list[torch.Tensor]:
    y = x * scalar + 1
    return [y, y.sum().cpu() * 2, y.to("cpu") + 1]


def _mutates(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    x[1:3].mul_(2)
    return x.sum(0)


def _random(x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(11)
    return [torch.rand(4096, device=x.device), torch.randint(0, 50, (100,), device=x.device)]


def _random_same(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.3, training=True)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _norms(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    n = (x.shape[-1],)
    return [F.layer_norm(x, n, w, b), F.rms_norm(x, n, w), x.softmax(-1), x.log_softmax(-1)]


def _convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2)


def _batch_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    c = x.shape[1]
    mean, var = torch.zeros(c, device=x.device), torch.ones(c, device=x.device)
    return F.batch_norm(x, mean.to(x.dtype), var.to(x.dtype), w, w, training=True)


def _large(x: torch.Tensor) -> torch.Tensor:
    return (x + 1)[-4:]


def _views(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.t() + 1, x[::2] * 2, x[:, 1:] - x[:, :-1], torch.cat([x, x * 2], 1), x.flip(0)]


def _stack(x: torch.Tensor) -> list[torch.Tensor]:
    values, places = x.sort(-1)
    top = x.topk(5, -1)
    return [values, top.values, torch.where(x > 0, x, -x), x.tril(), F.one_hot(places[0], 128)]


def _pads(x: torch.Tensor) -> list[torch.Tensor]:
    image = x[None, None]
    return [
        F.pad(x, (1, 2)), F.avg_pool2d(image, 2), F.interpolate(image, scale_factor=2),
        F.pad(image, (1, 1, 1, 1), mode="reflect"),
    ]  # fmt: skip


def _unaligned(dtype: torch.dtype) -> tuple[Any, ...]:
    return (torch.randn(1029, device=D).to(dtype)[1:].view(4, 257),)


CASES: tuple[Case, ...] = (
    Case(name="unary", run=_unary, inputs=r(37, 129)),
    Case(name="activations", run=_activations, inputs=r(37, 129), dtypes=("f32", "bf16", "f16")),
    Case(name="broadcast", run=lambda a, b, c: (a + b) * c, inputs=rs((8, 1, 33), (7, 1), (33,))),
    Case(name="integers", run=_integers, inputs=r(19, 65), dtypes=("f32",), exact=False),
    Case(name="reductions", run=_reductions, inputs=r(67, 130)),
    Case(name="long reductions", run=_reductions, inputs=r(3, 40000), dtypes=("f32",)),
    Case(name="tall reductions", run=lambda x: [x.sum(0), x.amax(0), x.var(0)], inputs=r(50000, 5)),
    Case(name="sum of all", run=lambda x: [x.sum(), x.mean(), x.amax()], inputs=r(3000, 1000)),
    Case(name="norms", run=_norms, inputs=rs((64, 1000), (1000,), (1000,))),
    Case(name="long norms", run=_norms, inputs=rs((8, 20000), (20000,), (20000,)), dtypes=("f32",)),
    Case(name="batch norm", run=_batch_norm, inputs=rs((8, 16, 30, 30), (16,))),
    Case(
        name="group norm",
        run=lambda x, w: F.group_norm(x, 4, w, w),
        inputs=rs((4, 16, 20, 20), (16,)),
    ),
    Case(name="views", run=_views, inputs=r(33, 66)),
    Case(name="sorts and selections", run=_stack, inputs=r(40, 128)),
    Case(name="pads and pools", run=_pads, inputs=r(20, 30)),
    Case(
        name="embedding",
        run=lambda t, i: F.embedding(i, t) * 2,
        inputs=lambda d: (torch.randn(100, 64, device=D).to(d), index(100, 9, 7)),
    ),
    Case(
        name="scatters",
        run=_scatter,
        inputs=lambda d: (
            torch.randn(60, 33, device=D).to(d),
            index(50, 300),
            torch.randn(200, 33, device=D).to(d),
        ),
        dtypes=("f32",),
    ),
    Case(
        name="host scalar",
        run=_mixed,
        inputs=lambda d: (torch.randn(30, 40, device=D).to(d), torch.tensor(2.5).to(d)),
    ),
    Case(name="mutation", run=_mutates, inputs=rs((6, 30), (6, 30))),
    Case(name="unaligned", run=lambda x: x * 2 + x.sum(-1, keepdim=True), inputs=_unaligned),
    Case(
        name="aligned, then not",
        run=lambda x: x * 2 + 1,
        inputs=r(4, 257),
        more=(_unaligned,),
    ),
    Case(
        name="strided input",
        run=lambda x: x.relu() + x.sum(0),
        inputs=lambda d: (torch.randn(50, 40, device=D).to(d).t(),),
    ),
    Case(name="empty", run=lambda x: [x + 1, x.sum(0), x.sum(-1)], inputs=r(0, 5)),
    Case(name="one element", run=lambda x: [x + 1, x.softmax(-1), x.var()], inputs=r(1, 2)),
    Case(
        name="dynamic sizes",
        run=_norms,
        inputs=rs((30, 100), (100,), (100,)),
        more=(
            rs((17, 129), (129,), (129,)),
            rs((1024, 512), (512,), (512,)),
            rs((5, 9000), (9000,), (9000,)),
        ),
        dynamic=True,
    ),
    Case(
        name="dynamic views",
        run=_views,
        inputs=r(30, 100),
        more=(r(17, 129), r(64, 64)),
        dynamic=True,
    ),
    Case(
        name="more than 32 bits",
        run=_large,
        inputs=lambda d: (torch.ones((1 << 31) + 64, dtype=torch.int8, device=D),),
        dtypes=("f32",),
        exact=False,
    ),
    Case(
        name="matmul",
        run=lambda a, b, c: F.gelu(torch.addmm(c, a, b)),
        inputs=rs((64, 128), (128, 96), (96,)),
    ),
    Case(name="attention", run=_attention, inputs=rs(*[(2, 4, 64, 32)] * 3)),
    Case(name="convolution", run=_convolution, inputs=rs((2, 8, 32, 32), (16, 8, 3, 3))),
)
