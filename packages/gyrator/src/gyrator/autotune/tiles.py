"""Convolutions by transformed tiles, to be timed beside oneDNN's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.engine.context import CompilerContext
from gyrator_ir.diagnostics import GyratorError
from gyrator_lowering.fx_passes import ImageConvolution, convolved, transformed_weight

TILED, DIRECT = "tiled", "direct"


def tiled_and_direct(
    context: CompilerContext, convolution: ImageConvolution, generator: torch.Generator
) -> Mapping[str, Callable[[], object]] | None:
    """Return two calls of a convolution with stride 1 of channels-last images, with weights that
    are packed; None if there is no kernel for tiles."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=generator.device)

    x = random(*convolution.input).to(memory_format=torch.channels_last)
    weight = random(*convolution.weight)
    bias = random(weight.shape[0]) if convolution.biased else None
    stride, padding, dilation, _, _, groups = map(_listed, convolution.parameters)
    tiled = _compiled(context, (x, transformed_weight(weight), bias), (padding[0], padding[1]))
    if tiled is None:
        return None
    op: Any = torch.ops.mkldnn
    window = padding, stride, dilation, groups
    packed = op._reorder_convolution_weight(
        weight.contiguous(memory_format=torch.channels_last), *window, list(x.shape)
    )
    direct = op._convolution_pointwise.default
    return {DIRECT: lambda: direct(x, packed, bias, *window, "none", [], ""), TILED: tiled}


def _listed(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value


def _compiled(
    context: CompilerContext, arguments: tuple[Any, ...], padding: tuple[int, int]
) -> Callable[[], object] | None:
    tensors = [a for a in arguments if a is not None]
    mode = FakeTensorMode()
    function = partial(_call, padding=padding)
    graph = make_fx(function, tracing_mode="fake")(*[mode.from_tensor(t) for t in tensors])
    try:
        call = context.trial(extern_kernels="library").compile(graph, "inference").call
    except GyratorError:
        return None
    return lambda: call([*tensors])


def _call(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    padding: tuple[int, int],
) -> tuple[torch.Tensor]:
    return (convolved(x, weight, bias, padding),)
