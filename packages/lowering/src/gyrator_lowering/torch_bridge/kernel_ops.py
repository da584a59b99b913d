"""Ops of matrices and channels-last images that generated kernels compute: `gyrator::panel_mm`,
`gyrator::panel_conv` and `gyrator::depthwise_conv`.

The weights of the first two are stored in panels, of columns or of features: kernels read a panel
from beginning to end, as a library reads its packed weights. Convolutions apply what follows them.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
FUNCTIONS: Mapping[str, Callable[..., Tensor]] = MappingProxyType({
    "none": lambda x: x,
    "relu": aten.relu.default,
    "hardtanh": aten.hardtanh.default,
    "leaky_relu": aten.leaky_relu.default,
    "swish": aten.silu.default,
    "sigmoid": aten.sigmoid.default,
    "hardswish": aten.hardswish.default,
    "hardsigmoid": aten.hardsigmoid.default,
    "tanh": aten.tanh.default,
})  # fmt: skip
"""What a convolution may apply to its result, by the names of oneDNN."""


def in_panels(weight: Tensor, width: int) -> Tensor:
    """Return the panels, of `width` columns, of a weight of shape (columns, depth)."""
    columns, depth = weight.shape
    return weight.view(columns // width, width, depth).permute(0, 2, 1).contiguous()


def panel_mm(x: Tensor, panels: Tensor) -> Tensor:
    """Return a product of matrices.

    Args:
        x: of shape (rows, depth).
        panels: the right factor, of shape (panels, depth, columns of a panel).
    """
    return x @ panels.permute(1, 0, 2).flatten(1)


def _fake_panel_mm(x: Tensor, panels: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], panels.shape[0] * panels.shape[2])


def panel_conv(
    images: Sequence[Tensor],
    panels: Tensor,
    bias: Tensor,
    features: int,
    addend: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    after: str,
    scalars: Sequence[float],
) -> Tensor:
    """Return a convolution in channels-last layout.

    Args:
        images: of shape (batch, channels, height, width); their channels follow each other.
        panels: the weight, of shape (panels, rows and columns of the window, channels, features of
            a panel).
        bias: of shape (panels * features of a panel,).
        features: the number of features, which leaves no panel unused.
        addend: is added to the result, if it is not None.
        stride: of rows and of columns.
        padding: the rows above and the columns on the left, then those below and on the right.
        after: the function that is applied, one of `FUNCTIONS`.
        scalars: other arguments of this function.
    """
    weight = panels.permute(0, 4, 3, 1, 2).flatten(0, 1)[:features]
    x = _padded(torch.cat(list(images), 1), padding)
    result = F.conv2d(x, weight, bias[:features], list(stride))
    if addend is not None:
        result = result + addend
    return _finished(result, after, scalars)


def _fake_panel_conv(
    images: Sequence[Tensor], panels: Tensor, bias: Tensor, features: int, addend: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], *_: Any,
) -> Tensor:  # fmt: skip
    return _fake_images(images[0], panels.shape[1:3], features, stride, padding, (1, 1))


def depthwise_conv(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    after: str,
    scalars: Sequence[float],
) -> Tensor:
    """Return a convolution of each channel separately in channels-last layout.

    Args:
        image: of shape (batch, channels, height, width).
        weight: of shape (rows of the window, columns of the window, channels).
        bias: of shape (channels,), or None.
        stride: of rows and of columns.
        padding: the rows above and the columns on the left, then those below and on the right.
        dilation: of rows and of columns.
        after: the function that is applied, one of `FUNCTIONS`.
        scalars: other arguments of this function.
    """
    filters = weight.permute(2, 0, 1)[:, None]
    x = _padded(image, padding)
    result = F.conv2d(x, filters, bias, list(stride), 0, list(dilation), filters.shape[0])
    return _finished(result, after, scalars)


def _fake_depthwise_conv(
    image: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], *_: Any,
) -> Tensor:  # fmt: skip
    return _fake_images(image, weight.shape[:2], image.shape[1], stride, padding, dilation)


def _padded(image: Tensor, padding: Sequence[int]) -> Tensor:
    top, left, bottom, right = padding
    return F.pad(image, [left, right, top, bottom])


def _finished(sums: Tensor, after: str, scalars: Sequence[float]) -> Tensor:
    return FUNCTIONS[after](sums, *scalars).contiguous(memory_format=torch.channels_last)


def _fake_images(
    image: Tensor, window: Sequence[int], features: int, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    pads = zip(padding[:2], padding[2:], strict=True)
    numbers = zip(image.shape[2:], pads, window, stride, dilation, strict=True)
    sizes = [(n + sum(p) - (k - 1) * d - 1) // s + 1 for n, p, k, s, d in numbers]
    return image.new_empty(image.shape[0], *sizes, features).permute(0, 3, 1, 2)


OPS = (
    ("panel_mm(Tensor x, Tensor panels) -> Tensor", panel_mm, _fake_panel_mm),
    (
        "panel_conv(Tensor[] images, Tensor panels, Tensor bias, int features, Tensor? addend, "
        "int[2] stride, int[4] padding, str after, float[] scalars) -> Tensor",
        panel_conv,
        _fake_panel_conv,
    ),
    (
        "depthwise_conv(Tensor image, Tensor weight, Tensor? bias, int[2] stride, int[4] padding, "
        "int[2] dilation, str after, float[] scalars) -> Tensor",
        depthwise_conv,
        _fake_depthwise_conv,
    ),
)
"""The schema of each op, its implementation, and that for fake tensors."""
