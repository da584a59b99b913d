"""Find out which formulas of lowering have the bits of this process's ATen.

ATen's kernels depend on its build, the processor and environment variables. Each op is run on a
sample, and the checksum of its result compared with that of the ATen for which the formula was
verified.
"""

import ctypes
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import torch
from torch import Tensor

Sample = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
aten = torch.ops.aten


def _sums(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    cube = torch.cat((x, y, z)).view(37, 7, 24)
    sides = (cube, cube.double(), cube.bfloat16(), cube.half())
    dims: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
    return tuple(side.sum(d) for side in sides for d in dims)


def _layer_norms(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    few, many = x.view(28, 74), y[:1800].view(6, 300)
    return (
        *aten.native_layer_norm(few, [74], y[:74], z[:74], 1e-5),
        *aten.native_layer_norm(many, [300], None, None, 1e-5),
    )


def _batch_norms(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    images = x.view(2, 14, 2, 37)
    parameters = (y[:14], y[14:28], z[:14], z[14:28].abs())
    return tuple(
        aten._native_batch_norm_legit_no_training(i, *parameters, 0.1, 1e-5)[0]
        for i in (images, images.contiguous(memory_format=torch.channels_last))
    )


def _rows(op: Callable[..., Tensor], count: int) -> Sample:
    """Return the sample of an op on rows, of `count` tensors: shorter than a vector of eight or
    sixteen elements, and longer than several."""

    def sample(*tensors: Tensor) -> tuple[Tensor, ...]:
        more = (-1, torch.float32) if count == 2 else (-1, False)
        return tuple(
            op(*(t[: size * 7].view(7, size) for t in tensors[:count]), *more)
            for size in (5, 8, 12, 33, 275)
        )

    return sample


def _softmax_gradients(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Return gradients of softmax for rows without a rest, and for single rows: those of several
    rows with a rest depend on the number of threads."""
    shapes = ((7, 5), (7, 8), (7, 48), (7, 288), (1, 12), (1, 33), (1, 275))
    return tuple(
        aten._softmax_backward_data(*(t[: n * size].view(n, size) for t in (x, y)), -1, x.dtype)
        for n, size in shapes
    )


def _short(op: Callable[..., Tensor], count: int) -> Sample:
    """Return the sample of an op on `count` tensors of 24 elements, of which vectors of eight
    elements leave others to scalar functions than vectors of sixteen."""

    def sample(*tensors: Tensor) -> tuple[Tensor, ...]:
        parts = zip(*(torch.split(t, 24) for t in tensors[:count]), strict=True)
        return tuple(op(*part) for part in parts)

    return sample


def _losses(op: Callable[..., Tensor], *more: float) -> Sample:
    """Return the sample of a loss."""
    return lambda x, y, z: tuple(
        op(*sides, reduction, *more)
        for sides in ((x, y), (x.double(), y.double()))
        for reduction in range(3)
    )


def _gradients(op: Callable[..., Tensor], *more: float) -> Sample:
    """Return the sample of the gradient of a loss."""
    return lambda x, y, z: (
        op(z[7], x, y, 1, *more),
        op(z.double(), x.double(), y.double(), 0, *more),
    )


def _nll_gradients(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    rows, target = x.view(28, 74), torch.arange(28)
    return (aten.nll_loss_backward(y[3], rows, target, None, 1, 5, z[4]),)


_SAMPLES: Mapping[str, tuple[int, Sample]] = MappingProxyType(
    {
        "aten.sum": (0x08209DA5, _sums),
        "aten.mean": (0x6C54FE30, lambda x, y, z: (torch.cat((x, y, z)).view(74, 84).mean(0),)),
        "aten.add": (0xC3E94096, lambda x, y, z: (aten.add(x, y, alpha=0.3),)),
        "aten.sub": (0x8C1F8437, lambda x, y, z: (aten.sub(x, y, alpha=0.3),)),
        "aten.addcmul": (0x339BB58E, lambda x, y, z: (aten.addcmul(x, y, z, value=0.3),)),
        "aten.lerp": (0x3FC31C50, lambda x, y, z: (aten.lerp(x, y, 0.3),)),
        "aten.rsqrt": (0xBFDBB46D, lambda x, y, z: (aten.rsqrt(x.abs()),)),
        "aten.tanh_backward": (0xAC251CB5, lambda x, y, z: (aten.tanh_backward(x, y),)),
        "aten.sigmoid": (0x79D5E288, _short(aten.sigmoid, 1)),
        "aten.silu": (0x42670DB0, _short(aten.silu, 1)),
        "aten.silu_backward": (0x28177E42, _short(aten.silu_backward, 2)),
        "aten.gelu": (0xB10973A3, lambda x, y, z: (aten.gelu(x[:256] * 2),)),
        "aten.gelu_backward": (0x3D07138B, lambda x, y, z: (aten.gelu_backward(x[:256], y[:256]),)),
        "aten.pow": (0xA0B116C4, lambda x, y, z: (aten.pow(x, 3), aten.pow(x.double(), -2))),
        "aten.mse_loss": (0x60869EAF, _losses(aten.mse_loss)),
        "aten.mse_loss_backward": (0x757874B9, _gradients(aten.mse_loss_backward)),
        "aten.smooth_l1_loss": (0xCBCAD6EF, _losses(aten.smooth_l1_loss, 0.3)),
        "aten.smooth_l1_loss_backward": (0x322DF062, _gradients(aten.smooth_l1_loss_backward, 1.0)),
        "aten.huber_loss": (0xD0621EFC, _losses(aten.huber_loss, 0.3)),
        "aten.huber_loss_backward": (0x322DF062, _gradients(aten.huber_loss_backward, 1.0)),
        "aten.nll_loss_backward": (0x2D700115, _nll_gradients),
        "aten._softmax": (0xCDCDF1B5, _rows(aten._softmax, 1)),
        "aten._safe_softmax": (
            0xC45BC615,
            lambda x, y, z: (aten._safe_softmax(x.view(28, 74), -1),),
        ),
        "aten._log_softmax": (0xD14C6F8A, _rows(aten._log_softmax, 1)),
        "aten._softmax_backward_data": (0xC5108759, _softmax_gradients),
        "aten._log_softmax_backward_data": (0x2EDCC095, _rows(aten._log_softmax_backward_data, 2)),
        "aten._native_batch_norm_legit_no_training": (0x2C2266EE, _batch_norms),
        "aten.native_layer_norm": (0xB0A539F8, _layer_norms),
    }
)
"""By op: the checksum of the ATen for which its formula was verified, and the sample."""
_WIDE: Mapping[str, int] = MappingProxyType(
    {
        "aten.sigmoid": 0x17A8A35F,
        "aten.silu": 0x3E7CEC8B,
        "aten.silu_backward": 0x0C25341A,
        "aten.gelu": 0x7FE14530,
        "aten._softmax": 0x91B81F2D,
        "aten._safe_softmax": 0xFD4EFF15,
        "aten._log_softmax": 0x0A54B656,
        "aten._softmax_backward_data": 0x68E456D7,
        "aten._log_softmax_backward_data": 0x7ADFE4E5,
    }
)
"""The checksums of an ATen with vectors of sixteen elements, for which the same formulas were
verified with so many lanes."""
_SIZE = 2072
_ORDERED = frozenset(
    "aten." + op for op in """
    sum mean mse_loss smooth_l1_loss huber_loss _softmax _safe_softmax _log_softmax
    _softmax_backward_data _log_softmax_backward_data
    """.split()
)  # fmt: skip
"""Ops whose formulas hold only in kernels that add in element order."""


@cache
def known_bits() -> frozenset[str]:
    """Return the ops for which lowering knows formulas with ATen's bits, with the suffix `:16` if
    they are those of wide vectors."""
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        actual = checksums()
    known = frozenset(op for op, (checksum, _) in _SAMPLES.items() if actual[op] == checksum)
    return known | {f"{op}:16" for op, checksum in _WIDE.items() if actual[op] == checksum}


def bits_without_sums() -> frozenset[str]:
    """Return those of `known_bits` whose formulas hold whatever the order of sums in kernels."""
    return frozenset(op for op in known_bits() if op.partition(":")[0] not in _ORDERED)


def checksums() -> dict[str, int]:
    """Return the checksum of each op's sample with this process's ATen."""
    words = torch.arange(3 * _SIZE) * 2654435761 % (1 << 32) - (1 << 31)
    numbers = (words.double() * 2.0**-29).float().view(3, _SIZE)
    return {op: _checksum(sample(*numbers)) for op, (_, sample) in _SAMPLES.items()}


def _checksum(results: tuple[Tensor, ...]) -> int:
    total = 0
    for t in results:
        whole = torch.where(t.isnan(), torch.nan, t).contiguous()
        total = zlib.crc32(ctypes.string_at(whole.data_ptr(), whole.nbytes), total)
    return total
