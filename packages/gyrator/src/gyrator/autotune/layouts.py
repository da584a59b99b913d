"""Whether a CPU convolves faster channels-first or channels-last, measured once per machine."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve

from gyrator_lowering.fx_passes import ImageConvolution
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.profile import Timing, compare

FIRST, LAST, COPY = "channels_first", "channels_last", "copy"
_GAIN = 1.05
"""The minimum speedup of channels-last, to exclude measurement noise."""
_MEASURED_SHARE = 0.8
"""The fraction of a graph's convolution work that is measured, largest convolutions first."""
_MAX_WORK = 1 << 27
"""The number of multiplications to which a measured convolution is reduced by shrinking its
image."""
_MIN_IMAGE = 16
_MOST_WORK = 1 << 30
"""The number of multiplications to which it is reduced by halving its channels, which changes more
about its speed."""
_MIN_CHANNELS = 128
_SAMPLES = 3
_ELEMENT = 16
"""The cost of reading or writing an element, in multiplications."""


def channels_last_faster(
    convolutions: Sequence[ImageConvolution],
    measure: Callable[[ImageConvolution], Mapping[str, float] | None],
    copied: Callable[[], int],
) -> bool:
    """Return whether convolutions are, in total, faster in channels-last than in channels-first
    layout, if that needs `copied` elements of images to be copied from one to the other.

    `measure` returns the seconds of a small convolution in either layout, and of a copy of its
    input; if it cannot measure one now, the images stay as they are. The measured copies count
    together: each alone, most of all of a small image, may take several times as long per element.
    """
    counts = Counter(convolutions)
    shares = {c: count * work(c) for c, count in counts.items()}
    left = total = sum(shares.values())
    enough = (1 - _MEASURED_SHARE) * left
    first = last = copy = elements = 0.0
    for convolution in sorted(shares, key=shares.__getitem__, reverse=True):
        if left <= enough:
            break
        left -= shares[convolution]
        small = smaller(convolution)
        seconds, scale = measure(small), shares[convolution] / work(small)
        if seconds is None:
            return False
        first += scale * seconds[FIRST]
        last += scale * seconds[LAST]
        copy += seconds[COPY]
        elements += math.prod(small.input)
    if first < _GAIN * last:
        return False
    return first >= _GAIN * (last + copy / elements * copied() * (total - left) / total)


def work(convolution: ImageConvolution) -> float:
    """Return the approximate cost of a convolution in multiplications, including memory
    accesses."""
    batch, channels, *image = convolution.input
    out, each, *window = convolution.weight
    stride, *_, transposed, _, _ = convolution.parameters
    elements_out = batch * math.prod(image) / (1 if transposed else math.prod(stride))
    filters, moved = (channels, each * math.prod(stride)) if transposed else (out, out)
    per_element = each * filters * math.prod(window)
    passes = max(1, sum(convolution.gradients[:2]))
    elements = (
        batch * channels * math.prod(image) + elements_out * moved + math.prod(convolution.weight)
    )
    return passes * (elements_out * per_element + _ELEMENT * elements)


def smaller(convolution: ImageConvolution) -> ImageConvolution:
    """Return a convolution with fewer and smaller images, and with fewer channels if that is far
    from enough."""
    batch = min(convolution.input[0], torch.get_num_threads())
    minimum = max(_MIN_IMAGE, *convolution.weight[2:])
    reduced = evolve(convolution, input=(batch, *convolution.input[1:]))
    while work(reduced) > _MAX_WORK and max(reduced.input[2:]) >= 2 * minimum:
        image = (n // 2 if n >= 2 * minimum else n for n in reduced.input[2:])
        reduced = evolve(reduced, input=(*reduced.input[:2], *image))
    while work(reduced) > _MOST_WORK and (fewer := _with_fewer_channels(reduced)) != reduced:
        reduced = fewer
    return reduced


def _with_fewer_channels(convolution: ImageConvolution) -> ImageConvolution:
    """Return a convolution with half of the channels where that leaves each group enough."""
    batch, channels, *image = convolution.input
    out, each, *window = convolution.weight
    *_, transposed, _, groups = convolution.parameters

    def fewer(count: int) -> int:
        return count // 2 if count % 2 == 0 and count >= 2 * _MIN_CHANNELS else count

    weight = (groups * fewer(out // groups), fewer(each), *window)
    channels = weight[0] if transposed else groups * weight[1]
    return evolve(convolution, input=(batch, channels, *image), weight=weight)


def timed(
    convolution: ImageConvolution, device: DeviceInterface, generator: torch.Generator
) -> dict[str, float] | None:
    """Return the seconds of a convolution in either layout of its images, and of a copy of its
    input; None where other processes disturb.

    The weight is contiguous; the library reorders it as needed.
    """

    def random(shape: Sequence[int]) -> torch.Tensor:
        tensor = torch.empty(tuple(shape), dtype=convolution.dtype, device=convolution.device)
        return tensor.normal_(generator=generator)

    x, weight = random(convolution.input), random(convolution.weight)
    stride, padding, dilation, transposed, output_padding, groups = convolution.parameters
    features = weight.shape[1] * groups if transposed else weight.shape[0]
    bias = random([features]) if convolution.biased else None
    settings: tuple[Any, ...] = (stride, padding, dilation, transposed, output_padding, groups)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.convolution(x, weight, bias, *settings)

    def gradients(grad: torch.Tensor, x: torch.Tensor) -> Any:
        mask = list(convolution.gradients)
        return torch.ops.aten.convolution_backward(grad, x, weight, [features], *settings, mask)

    operands = (random(forward(x).shape), x) if convolution.gradients else (x,)
    run: Callable[..., Any] = gradients if convolution.gradients else forward
    last = [t.contiguous(memory_format=torch.channels_last) for t in operands]
    runs: dict[str, Callable[[], object]] = {
        FIRST: lambda: run(*operands),
        LAST: lambda: run(*last),
        COPY: lambda: x.contiguous(memory_format=torch.channels_last),
    }
    return undisturbed(compare(runs, device, samples=_SAMPLES, warmup=1))


def undisturbed(times: Mapping[str, Timing]) -> dict[str, float] | None:
    """Return the minimum seconds of each run; None if other processes slowed all samples of one."""
    if any(time.disturbed for time in times.values()):
        return None
    return {name: time.minimum for name, time in times.items()}
