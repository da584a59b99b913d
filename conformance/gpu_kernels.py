# ruff: noqa: ANN001, ANN201, ANN202  (kernels have no types)
"""Triton kernels as users write them, and programs that launch them, for `gpu.py`."""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from attrs import field, frozen
from triton.tools.tensor_descriptor import TensorDescriptor

FACTOR = tl.constexpr(3.0)
OFFSET = tl.constexpr(1)
D = "cuda"


@triton.jit
def _scaled(a, factor: tl.constexpr):
    """Give `a` times 'factor'; '''three quotes''' are nothing special."""
    return a * factor


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    """Write x times 3 plus 1.

    "Quotes", '''of all kinds''', and a \\ do no harm.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n

    tl.store(y + at, _scaled(tl.load(x + at, inside), FACTOR) + OFFSET, inside)


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 2), (128, 4), (512, 4))],
    key=["n"],
    restore_value=["total"],
)
@triton.jit
def accumulate(x, total, n, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """Add x to a total."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n).to(DTYPE) + tl.load(total + at, at < n)
    tl.store(total + at, value, at < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def guarded(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Write x times 2, without a mask where none is needed."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + at, tl.load(x + at) * 2)
    else:
        tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)


@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 256)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_guarded(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Write x times 2, in blocks of several sizes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (at < n) | EVEN
    tl.store(y + at, tl.load(x + at, mask) * 2, mask)


@triton.jit
def count(x, bins, n, BLOCK: tl.constexpr):
    """Count how often each number occurs."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins + tl.load(x + at, at < n, 0), 1, at < n)


@triton.jit
def by_assembly(x, y, n, BLOCK: tl.constexpr):
    """Write x times 2 by an instruction that nobody can look into."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n)
    twice = tl.inline_asm_elementwise(
        "add.f32 $0, $1, $1;", "=f,f", [value], dtype=tl.float32, is_pure=False, pack=1
    )
    tl.store(y + at, twice, at < n)


@triton.jit
def by_host_descriptor(source, target, BLOCK: tl.constexpr):
    """Write twice a tensor, both given by descriptors."""
    at = tl.program_id(0) * BLOCK
    target.store([at, 0], source.load([at, 0]) * 2)


@triton.jit
def by_own_descriptor(x, y, rows, columns, BLOCK: tl.constexpr):
    """Write a tensor plus 1, through descriptors made here."""
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(y, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    at = tl.program_id(0) * BLOCK
    target.store([at, 0], source.load([at, 0]) + 1)


def _tuples(x: torch.Tensor) -> list[torch.Tensor]:
    y, n = torch.empty_like(x), x.numel()
    scale[(triton.cdiv(n, 128),)](x, y, n, BLOCK=128)
    return [y * 2, x + 1]


def _functions(x: torch.Tensor) -> list[torch.Tensor]:
    y, n = torch.empty_like(x), x.numel()
    scale[lambda meta: (triton.cdiv(n, meta["BLOCK"]), 1)](x.sin(), y, n, BLOCK=64, num_warps=2)
    return [y.cos()]


def _tuned(x: torch.Tensor) -> list[torch.Tensor]:
    total, n = x * 2, x.numel()
    for _ in range(2):
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)  # noqa: E731
        accumulate[grid](x, total, n, DTYPE=tl.float32)
    return [total + 1]


def _heuristics(x: torch.Tensor) -> list[torch.Tensor]:
    y, z, n = torch.empty_like(x), torch.empty_like(x), x.numel()
    guarded[(triton.cdiv(n, 128),)](x, y, n, BLOCK=128)
    tuned_guarded[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, z, n)
    return [y, z]


def _views(x: torch.Tensor) -> list[torch.Tensor]:
    y = torch.zeros_like(x)
    n = x.numel() // 2 - 3
    scale[(triton.cdiv(n, 64),)](x[3:], y[x.numel() // 2 :], n, BLOCK=64)
    return [y + 1, y[1:] * 2]


def _mutates(x: torch.Tensor) -> list[torch.Tensor]:
    n = x.numel()
    before = x * 2
    scale[(triton.cdiv(n, 128),)](x, x, n, BLOCK=128)
    return [before, x + 1]


def _atomics(x: torch.Tensor) -> list[torch.Tensor]:
    bins = torch.zeros(10, dtype=torch.int32, device=x.device)
    places = (x.abs() * 3).to(torch.int32).clamp(0, 9)
    count[(triton.cdiv(x.numel(), 256),)](places, bins, x.numel(), BLOCK=256)
    return [bins, bins.sum()]


def _assembly(x: torch.Tensor) -> list[torch.Tensor]:
    y, n = torch.empty_like(x), x.numel()
    by_assembly[(triton.cdiv(n, 128),)](x, y, n, BLOCK=128)
    return [y + x]


def _host_descriptors(x: torch.Tensor) -> list[torch.Tensor]:
    a = x[:4096].view(64, 64) + 1
    y = torch.empty_like(a)
    source = TensorDescriptor.from_tensor(a, [16, 64])
    target = TensorDescriptor.from_tensor(y, [16, 64])
    by_host_descriptor[(4,)](source, target, BLOCK=16)
    return [y + 1]


def _own_descriptors(x: torch.Tensor) -> list[torch.Tensor]:
    a = x[:4096].view(64, 64) + 1
    y = torch.zeros_like(a)
    by_own_descriptor[(2,)](a, y, 64, 64, BLOCK=32)
    return [y * 2]


class _Doubled(torch.autograd.Function):
    """Twice a tensor, by a user's kernels in both directions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y, n = torch.empty_like(x), x.numel()
        guarded[(triton.cdiv(n, 128),)](x, y, n, BLOCK=128)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        y, n = torch.empty_like(gradient), gradient.numel()
        guarded[(triton.cdiv(n, 128),)](gradient, y, n, BLOCK=128)
        return y


def _training(x: torch.Tensor) -> list[torch.Tensor]:
    return [(_Doubled.apply(x.sin()) * x).sum()]


@frozen(kw_only=True)
class Launching:
    """A program of one tensor that launches users' kernels."""

    name: str
    run: Callable[[torch.Tensor], list[torch.Tensor]]
    sizes: tuple[int, ...] = (5000,)
    """Lengths of the tensor, one after the other for one compiled program."""
    dynamic: bool = False
    training: bool = False
    wrappers: tuple[str, ...] = field(default=("python", "fx", "cpp"))


LAUNCHES = (
    Launching(name="tuple grid", run=_tuples),
    Launching(name="function grid", run=_functions),
    Launching(name="autotuned", run=_tuned, wrappers=("python", "cpp")),
    Launching(name="heuristics", run=_heuristics, sizes=(4096,)),
    Launching(name="heuristics, uneven", run=_heuristics),
    Launching(name="views", run=_views),
    Launching(name="mutation", run=_mutates),
    Launching(name="atomics", run=_atomics),
    Launching(name="inline assembly", run=_assembly),
    Launching(name="descriptors of the host", run=_host_descriptors),
    Launching(name="descriptors of the device", run=_own_descriptors),
    Launching(name="dynamic sizes", run=_tuples, sizes=(5000, 77, 1024), dynamic=True),
    Launching(name="training", run=_training, training=True),
)
"""What PyTorch's FX op cannot launch, configurations with element types, is left out there."""
