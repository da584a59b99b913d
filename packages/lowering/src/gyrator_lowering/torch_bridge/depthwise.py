"""`gyrator::depthwise_conv`: a convolution of each channel of channels-last images separately, the
weight of which is contiguous along channels, with the function that follows it."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from gyrator_lowering.torch_bridge.panel_convolution import FUNCTIONS

SCHEMA = (
    "depthwise_conv(Tensor image, Tensor weight, Tensor? bias, int[2] stride, int[4] padding, "
    "int[2] dilation, str after, float[] scalars) -> Tensor"
)


def fake_depthwise_conv(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    after: str,
    scalars: Sequence[float],
) -> torch.Tensor:
    """Return a fake result of `depthwise_conv`."""
    batch, channels, *image_sizes = image.shape
    pads = zip(padding[:2], padding[2:], strict=True)
    numbers = zip(image_sizes, pads, weight.shape[:2], stride, dilation, strict=True)
    sizes = [(n + sum(p) - (k - 1) * d - 1) // s + 1 for n, p, k, s, d in numbers]
    return image.new_empty(batch, *sizes, channels).permute(0, 3, 1, 2)


def depthwise_conv(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    after: str,
    scalars: Sequence[float],
) -> torch.Tensor:
    """Return a convolution in channels-last layout.

    Args:
        image: of shape (batch, channels, height, width).
        weight: of shape (rows of the window, columns of the window, channels).
        bias: of shape (channels,), or None.
        stride: of rows and of columns.
        padding: the rows above and the columns on the left, then those below and on the right.
        dilation: of rows and of columns.
        after: the function that is applied, one of `panel_convolution.FUNCTIONS`.
        scalars: other arguments of this function.
    """
    filters = weight.permute(2, 0, 1)[:, None]
    groups = filters.shape[0]
    top, left, bottom, right = padding
    padded = F.pad(image, [left, right, top, bottom])
    result = F.conv2d(padded, filters, bias, list(stride), 0, list(dilation), groups)
    return FUNCTIONS[after](result, *scalars).contiguous(memory_format=torch.channels_last)
