"""Images resized by interpolation and to the nearest element, as in eager mode.

torch's formula of linear interpolation adds a weighted difference of elements, which is NaN beside
an infinite one, instead of weighing both; its formulas use scales where CPU kernels do not; and
none rounds as ATen's fixed-point kernels of bytes do.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import guard_or_false

from gyrator_ir.types import HOST

aten = torch.ops.aten
_FORMULAS: Any = decompositions
_COMPUTED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_FEW_CHANNELS = 16
"""Outside of the host, images of fewer channels have rows that are contiguous."""
_PIXEL = 4
"""The most channels of images for which ATen has vectorised fixed-point kernels."""


def in_fixed_point(x: Tensor) -> bool:
    """Return whether ATen interpolates between pixels by a fixed-point kernel, whose bits are its
    own, in much less time than a formula takes."""
    bytes_of_host = x.dtype is torch.uint8 and x.device.type == HOST
    return bytes_of_host and x.dim() == 4 and guard_or_false(x.shape[1] <= _PIXEL)


def _whole(op: Any, x: Tensor, *args: Any) -> Tensor:
    """Trace an op that has a formula as itself."""
    below: Any = torch._C._AutoDispatchBelowAutograd
    with below():
        result: Tensor = op(x, *args)
        return result


def cubic(x: Tensor, size: Any, corners: bool, scales: Any = None) -> Tensor:
    """`upsample_bicubic2d.vec`."""
    sizes = _FORMULAS.upsample_compute_output_size(x.size(), size, scales)
    return cubic_by(x, sizes, corners, *(scales or ()))


def cubic_by(x: Tensor, sizes: Sequence[Any], corners: bool, *scales: Any) -> Tensor:
    """`upsample_bicubic2d`."""
    if in_fixed_point(x):
        return _whole(aten.upsample_bicubic2d.default, x, sizes, corners, *scales)
    result: Tensor = _FORMULAS.upsample_bicubic2d_default(x, sizes, corners, *scales)
    return result


def resized(x: Tensor, size: Any, corners: bool, scales: Any) -> Tensor:
    """`upsample_linear1d.vec`, `upsample_bilinear2d.vec` or `upsample_trilinear3d.vec`."""
    sizes = _FORMULAS.upsample_compute_output_size(x.size(), size, scales)
    return resized_by(x, sizes, corners, *(scales or ()))


def resized_by(x: Tensor, sizes: Sequence[Any], corners: bool, *scales: Any) -> Tensor:
    """`upsample_linear1d`, `upsample_bilinear2d` or `upsample_trilinear3d`."""
    if in_fixed_point(x):
        return _whole(aten.upsample_bilinear2d.default, x, sizes, corners, *scales)
    all_scales = [*scales, *[None] * (len(sizes) - len(scales))]
    if not x.is_floating_point():
        rounded: Tensor = _FORMULAS._upsample_linear(x, sizes, corners, all_scales)
        return rounded
    dtype = _COMPUTED.get(x.dtype, x.dtype)
    same = [guard_or_false(n == m) for n, m in zip(x.shape[2:], sizes, strict=True)]
    if x.device.type != HOST:  # CUDA kernels copy whole images only
        same = [all(same)] * len(same)
    numbers = zip(sizes, same, all_scales, strict=True)
    axes = [
        _itself(x, axis, dtype) if is_same else _neighbours(x, axis, m, corners, scale, dtype)
        for axis, (m, is_same, scale) in enumerate(numbers, start=2)
    ]
    corner_indices = product(*([low, high] for low, high, _ in axes))
    values: list[Tensor]
    values = [aten._unsafe_index(x, [None, None, *i]).to(dtype) for i in corner_indices]
    for *_, weight in reversed(axes):
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [first * (1 - weight) + second * weight for first, second in pairs]
    few = x.device.type != HOST and x.shape[1] < _FEW_CHANNELS
    layout = torch.contiguous_format if few else suggest_memory_format(x)
    result: Tensor = values[0].to(x.dtype).contiguous(memory_format=layout)
    return result


def nearest(x: Tensor, size: Any, scales: Any) -> Tensor:
    """`upsample_nearest2d.vec`. On the host, the scale has no effect along an axis whose size is
    kept or doubled."""
    sizes = _FORMULAS.upsample_compute_output_size(x.size(), size, scales)
    used = list(scales or [None] * len(sizes))
    if scales and x.device.type == HOST:
        for axis, (n, m) in enumerate(zip(x.shape[2:], sizes, strict=True)):
            if guard_or_false(m == n) or guard_or_false(m == 2 * n):
                used[axis] = None
    result: Tensor = _FORMULAS._upsample_nearest(x, sizes, used)
    return result


def _itself(x: Tensor, axis: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `_neighbours` does for an axis that keeps its size, whatever the scale: each
    element is its own neighbour, of weight 0."""
    i = torch.arange(x.shape[axis], device=x.device).reshape(-1, *[1] * (x.dim() - axis - 1))
    return i, i, torch.zeros_like(i, dtype=dtype)


def _neighbours(
    x: Tensor, axis: int, m: Any, corners: bool, scale: float | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return both source positions along an axis, and the weight of the second, in the shape that
    broadcasts to the result."""
    n = x.shape[axis]
    shape = (-1, *[1] * (x.dim() - axis - 1))
    i = torch.arange(m, device=x.device).to(dtype)
    if corners:
        at = i * ((n - 1.0) / (m - 1.0) if m > 1 else 0)
    else:
        at = (i + 0.5) * (1.0 / scale if scale is not None and scale > 0 else n / m) - 0.5
    at = at.clamp(min=0.0).reshape(shape)
    low = at.to(torch.int64)
    weight = (at - low).clamp(0.0, 1.0)
    return low, (low + 1).clamp(max=n - 1), weight
