"""How convolutions of a CPU are quicker: by planes or by points, each measured once a machine."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve

from gyrator_lowering.fx_passes import ImageConvolution
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.profile import compare

PLANES, POINTS = "planes", "points"
_GAIN = 1.05
"""How much quicker points must be, for the copies that they need."""
_SHARE = 0.8
"""Of the work of a graph's convolutions that is measured, the dearest first."""
_MOST = 1 << 27
"""Multiplications of a convolution as it is measured, if a smaller image has so few."""
_LEAST_IMAGE = 16
_SAMPLES = 3
_ELEMENT = 16
"""What an element that is read or written counts as, in multiplications."""


def points_quicker(
    convolutions: Sequence[ImageConvolution],
    measure: Callable[[ImageConvolution], Mapping[str, float]],
) -> bool:
    """Return whether convolutions, taken together, are quicker by points than by planes.

    `measure` returns the seconds of a convolution by both; it is given small ones.
    """
    counts = Counter(convolutions)
    shares = {c: count * work(c) for c, count in counts.items()}
    left = sum(shares.values())
    enough = (1 - _SHARE) * left
    planes = points = 0.0
    for convolution in sorted(shares, key=shares.__getitem__, reverse=True):
        if left <= enough:
            break
        left -= shares[convolution]
        small = smaller(convolution)
        seconds, scale = measure(small), shares[convolution] / work(small)
        planes += scale * seconds[PLANES]
        points += scale * seconds[POINTS]
    return planes >= _GAIN * points


def work(convolution: ImageConvolution) -> float:
    """Return what a convolution costs, about: its multiplications, and elements counted as some."""
    batch, channels, *image = convolution.input
    out, each, *window = convolution.weight
    stride, *_, transposed, _, _ = convolution.parameters
    points = batch * math.prod(image) / (1 if transposed else math.prod(stride))
    filters, moved = (channels, each * math.prod(stride)) if transposed else (out, out)
    per_point = each * filters * math.prod(window)
    passes = max(1, sum(convolution.gradients[:2]))
    elements = batch * channels * math.prod(image) + points * moved + math.prod(convolution.weight)
    return passes * (points * per_point + _ELEMENT * elements)


def smaller(convolution: ImageConvolution) -> ImageConvolution:
    """Return a convolution of fewer and smaller images with the same channels."""
    _, channels, *image = convolution.input
    batch = min(convolution.input[0], torch.get_num_threads())
    least = max(_LEAST_IMAGE, *convolution.weight[2:])
    while True:
        found = evolve(convolution, input=(batch, channels, *image))
        if work(found) <= _MOST or max(image) < 2 * least:
            return found
        image = [n // 2 if n >= 2 * least else n for n in image]


def timed(
    convolution: ImageConvolution, device: DeviceInterface, generator: torch.Generator
) -> dict[str, float]:
    """Return the seconds of a convolution by planes and by points; the weight lies by planes, and
    is brought by the library into what it wants."""

    def drawn(shape: Sequence[int]) -> torch.Tensor:
        made = torch.empty(tuple(shape), dtype=convolution.dtype, device=convolution.device)
        return made.normal_(generator=generator)

    x, weight = drawn(convolution.input), drawn(convolution.weight)
    stride, padding, dilation, transposed, output_padding, groups = convolution.parameters
    features = weight.shape[1] * groups if transposed else weight.shape[0]
    bias = drawn([features]) if convolution.biased else None
    settings: tuple[Any, ...] = (stride, padding, dilation, transposed, output_padding, groups)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.convolution(x, weight, bias, *settings)

    def gradients(grad: torch.Tensor, x: torch.Tensor) -> Any:
        mask = list(convolution.gradients)
        return torch.ops.aten.convolution_backward(grad, x, weight, [features], *settings, mask)

    operands = (drawn(forward(x).shape), x) if convolution.gradients else (x,)
    run: Callable[..., Any] = gradients if convolution.gradients else forward
    last = [t.contiguous(memory_format=torch.channels_last) for t in operands]
    runs = {PLANES: lambda: run(*operands), POINTS: lambda: run(*last)}
    times = compare(runs, device, samples=_SAMPLES, warmup=2)
    return {layout: time.least for layout, time in times.items()}
