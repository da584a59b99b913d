"""`gyrator::panel_conv`: a convolution whose weight is stored in panels of features, with what
often follows it."""

from collections.abc import Sequence

import torch

SCHEMA = (
    "panel_conv(Tensor[] images, Tensor panels, Tensor bias, Tensor? addend, int[2] stride, "
    "int[4] padding, bool relu) -> Tensor"
)


def fake_panel_conv(
    images: Sequence[torch.Tensor],
    panels: torch.Tensor,
    bias: torch.Tensor,
    addend: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    relu: bool,
) -> torch.Tensor:
    """Return a fake result of `panel_conv`."""
    x = images[0]
    pads = zip(padding[:2], padding[2:], strict=True)
    numbers = zip(x.shape[2:], pads, panels.shape[1:3], stride, strict=True)
    sizes = [(n + sum(p) - k) // s + 1 for n, p, k, s in numbers]
    result = x.new_empty(x.shape[0], *sizes, bias.shape[0])
    return result.permute(0, 3, 1, 2)


def panel_conv(
    images: Sequence[torch.Tensor],
    panels: torch.Tensor,
    bias: torch.Tensor,
    addend: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    relu: bool,
) -> torch.Tensor:
    """Return a convolution in channels-last layout.

    Args:
        images: of shape (batch, channels, height, width); their channels follow each other.
        panels: the weight, of shape (panels, rows and columns of the window, channels, features of
            a panel).
        bias: of shape (features,).
        addend: is added to the result, if it is not None.
        stride: of rows and of columns.
        padding: the rows above and the columns on the left, then those below and on the right.
        relu: whether `relu` is applied.
    """
    weight = panels.permute(0, 4, 3, 1, 2).flatten(0, 1)
    top, left, bottom, right = padding
    x = torch.nn.functional.pad(torch.cat(list(images), 1), [left, right, top, bottom])
    result = torch.nn.functional.conv2d(x, weight, bias, list(stride))
    if addend is not None:
        result = result + addend
    if relu:
        result = result.relu()
    return result.contiguous(memory_format=torch.channels_last)
