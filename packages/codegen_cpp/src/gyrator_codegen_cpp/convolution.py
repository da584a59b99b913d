"""Convolutions of channels-last images as C++, by register tiles of pixels by features.

A thread computes a band of rows of an image for some panels of features at a time.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from gyrator_codegen import Writer, static
from gyrator_codegen_cpp.kernel import parameters
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.define import frozen
from gyrator_ir.expr import ZERO, contiguous_strides
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.loop.templates import convolution_images
from gyrator_ir.loop.templates import literal as literal_attribute

_PIXELS: Mapping[Isa, Mapping[int, int]] = MappingProxyType({
    Isa.AVX512: MappingProxyType({1: 28, 2: 14}),
    Isa.AVX2: MappingProxyType({1: 12, 2: 6}),
})  # fmt: skip
"""The most pixels of a register tile with so many vectors of features."""
_BAND_ELEMENTS = 1 << 16
"""The most elements of an image, and of a result, that a thread reads or writes for a panel, for a
quarter of a megabyte of L2 each."""
_PART_ELEMENTS = 1 << 18
"""The most elements of the panels that meet several bands, for a megabyte of L2."""
_CLOSE_ELEMENTS = 1 << 15
"""The most elements of a panel whose weights the processor itself prefetches in time, for 128 KiB.
"""


def convolution_unsupported(kernel: TemplateKernel, isa: Isa) -> str:
    """Return why there is no kernel for a convolution, or an empty string."""
    if isa not in _PIXELS:
        return "convolutions need the registers of AVX2"
    images, more = convolution_images(kernel.inputs)
    tensors = (*kernel.inputs[1:3], *more, *kernel.outputs)
    strides = (n for x in images for n in x.strides)
    constants = (*strides, *(n for t in (*images, *tensors) for n in t.shape))
    if any(static(n) is None for n in constants) or any(x.offset is not ZERO for x in images):
        return "the sizes of a convolution are not constant"
    if not in_row_major_order(tensors):
        return "the tensors of a convolution are not in row-major order"
    *_, width = sizes_of(kernel.inputs[1])
    if width % isa.lanes or width // isa.lanes not in _PIXELS[isa]:
        return f"panels of {width} features have no register tile"
    return ""


@frozen
class _Plan:
    """How a convolution is divided."""

    vectors: int
    """Of features of a register tile."""
    pixels: int
    """Of a register tile."""
    last: int
    """Pixels of the last tile of a row, or of the image, if it has fewer."""
    line: int
    """Pixels of a row within a tile."""
    band: int
    """Rows of the result that a thread computes at a time."""
    parts: int
    """The parts of the panels, if there are fewer bands than threads, or if L2 does not hold all
    panels until the next band reads them. All bands read a part before the next one."""

    @classmethod
    def of(cls, kernel: TemplateKernel, cores: int, isa: Isa) -> "_Plan":
        """Return the plan of a convolution: tiles of whole rows if several fit, else of as many
        pixels as leave few at the end of a row."""
        _, _, width, _ = sizes_of(kernel.inputs[0])
        panels, _, _, channels, features = sizes_of(kernel.inputs[1])
        batch, rows, columns, outputs = sizes_of(kernel.outputs[0])
        vectors = features // isa.lanes
        down, *_ = steps_of(kernel)
        most = _PIXELS[isa][vectors]
        together = min(most // columns, rows) or 1
        if together > 1:
            pixels, last, line = together * columns, rows % together * columns, columns
        else:
            pixels = ceil_quotient(columns, ceil_quotient(columns, most))
            last, line = columns % pixels, pixels
        longest = max(width * channels * down, columns * outputs)
        lines = max(1, _BAND_ELEMENTS // longest)
        lines = min(lines, ceil_quotient(rows, ceil_quotient(cores, panels * batch)))
        band = ceil_quotient(ceil_quotient(rows, ceil_quotient(rows, lines)), together) * together
        bands = batch * ceil_quotient(rows, band)
        elements = math.prod(sizes_of(kernel.inputs[1]))
        several = ceil_quotient(elements, _PART_ELEMENTS) if bands > 1 else 1
        parts = min(panels, max(several, ceil_quotient(cores, bands)))
        return cls(vectors, pixels, last, line, band, parts)


def ceil_quotient(a: int, b: int) -> int:
    """Return a quotient, rounded up."""
    return -(-a // b)


def convolution_body(kernel: TemplateKernel, after: str, cores: int, isa: Isa) -> tuple[str, str]:
    """Return the template arguments of a kernel's tiles, and the body of its function. `after` is
    the function of sums that is stored."""
    w, plan = Writer(), _Plan.of(kernel, cores, isa)
    w.line("(void)sizes;")
    parameters(w, kernel, str)
    x, panels, bias = kernel.inputs[:3]
    images, addend = convolution_images(kernel.inputs)
    (out,) = kernel.outputs
    batch, height, width, _ = sizes_of(x)
    count, tall, wide, channels, _ = sizes_of(panels)
    _, rows, columns, features = sizes_of(out)
    down, right, top, left = steps_of(kernel)
    bands = ceil_quotient(rows, plan.band)
    tasks = batch * bands * plan.parts
    in_place = _reads_in_place(kernel)
    if in_place:
        line, pixel = (static(n) or 0 for n in x.strides[1:3])
        step, row = right * pixel, down * line
    else:
        step = right * channels
        row = down * ((columns - 1) * step + wide * channels)
    below = row if plan.pixels > plan.line else 0
    far = math.prod(sizes_of(panels)[1:]) > _CLOSE_ELEMENTS and plan.vectors > 1
    numbers = (plan.pixels, plan.last, plan.vectors, step, plan.line, below)
    tile = ", ".join((after, *map(str, numbers), "true" if far else "false"))
    more = f"{addend[0].buffer} + image * {math.prod(sizes_of(out)[1:])}" if addend else "nullptr"
    w.line("si64 next = 0;")
    w.line(f"#pragma omp parallel if ({tasks} > 1)")
    with w.block("for (;;) {"):
        w.line("const si64 task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);")
        w.line(f"if (task >= {tasks}) break;")
        w.line(
            f"const si64 part = task / {batch * bands}, band = task % {bands}, "
            f"image = task / {bands} % {batch};"
        )
        if in_place:
            at = f"{x.buffer} + image * {static(x.strides[0])} + band * {plan.band * row}"
            source = f"gy_convolve_rows<{tile}>({at}, {row}, 0, 1, {channels}"
        else:
            w.line(f"const gy_channels parts[] = {{{', '.join(map(_channels, images))}}};")
            w.line(
                f"const gy_image window = {{parts, {len(images)}, {height}, {width}, {channels}, "
                f"{tall}, {wide}, {down}, {top}, {left}}};"
            )
            source = f"gy_convolve<{tile}>(window"
        w.line(
            f"{source}, {panels.buffer}, {bias.buffer}, {more}, "
            f"{out.buffer} + image * {rows * columns * features}, band * {plan.band}, "
            f"gy_least((band + 1) * {plan.band}, {rows}), {columns}, "
            f"part * {count} / {plan.parts}, (part + 1) * {count} / {plan.parts}, {features});"
        )
    w.line("return 0;")
    return tile, w.text


def _reads_in_place(kernel: TemplateKernel) -> bool:
    """Return whether windows are single pixels of an image that need not be copied."""
    images, _ = convolution_images(kernel.inputs)
    _, tall, wide, _, _ = sizes_of(kernel.inputs[1])
    _, height, width, _ = sizes_of(images[0])
    _, rows, columns, _ = sizes_of(kernel.outputs[0])
    down, right, top, left = steps_of(kernel)
    alone = len(images) == 1 and static(images[0].strides[3]) == 1
    inside = top == left == 0 and (rows - 1) * down < height and (columns - 1) * right < width
    return alone and tall == wide == 1 and inside


def steps_of(kernel: TemplateKernel) -> list[int]:
    """Return by how much windows move down and right, and what is above and left of the image."""
    names = ("down", "right", "top", "left")
    return [literal_attribute(kernel.attributes, name, int) for name in names]


def _channels(x: TensorRef) -> str:
    """Return the initializer of the channels of an image."""
    image, *steps = (static(n) for n in x.strides)
    numbers = ", ".join(map(str, (static(x.shape[3]), *steps)))
    return f"{{{x.buffer} + image * {image}, {numbers}}}"


def in_row_major_order(tensors: Iterable[TensorRef]) -> bool:
    """Return whether the elements of tensors follow one another from the beginning of a buffer."""
    return all(t.offset is ZERO and t.strides == contiguous_strides(t.shape) for t in tensors)


def sizes_of(t: TensorRef) -> Sequence[int]:
    """Return the sizes of a tensor of constant shape."""
    return [static(n) or 0 for n in t.shape]
