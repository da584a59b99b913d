"""`gyrator::panel_conv`: a convolution whose weight is stored in panels of features, with what
often follows it."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

aten = torch.ops.aten
FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = MappingProxyType({
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

SCHEMA = (
    "panel_conv(Tensor[] images, Tensor panels, Tensor bias, int features, Tensor? addend, "
    "int[2] stride, int[4] padding, str after, float[] scalars) -> Tensor"
)


def fake_panel_conv(
    images: Sequence[torch.Tensor],
    panels: torch.Tensor,
    bias: torch.Tensor,
    features: int,
    addend: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    after: str,
    scalars: Sequence[float],
) -> torch.Tensor:
    """Return a fake result of `panel_conv`."""
    x = images[0]
    pads = zip(padding[:2], padding[2:], strict=True)
    numbers = zip(x.shape[2:], pads, panels.shape[1:3], stride, strict=True)
    sizes = [(n + sum(p) - k) // s + 1 for n, p, k, s in numbers]
    result = x.new_empty(x.shape[0], *sizes, features)
    return result.permute(0, 3, 1, 2)


def panel_conv(
    images: Sequence[torch.Tensor],
    panels: torch.Tensor,
    bias: torch.Tensor,
    features: int,
    addend: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    after: str,
    scalars: Sequence[float],
) -> torch.Tensor:
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
    top, left, bottom, right = padding
    x = torch.nn.functional.pad(torch.cat(list(images), 1), [left, right, top, bottom])
    result = torch.nn.functional.conv2d(x, weight, bias[:features], list(stride))
    if addend is not None:
        result = result + addend
    return FUNCTIONS[after](result, *scalars).contiguous(memory_format=torch.channels_last)
