"""Depthwise convolutions of channels-last images as C++, by register tiles of neighbouring pixels.

A tile is a vector of channels of some pixels of a row: each pixel of the image is loaded once for a
row of the window, and meets the weights of that row in registers. Which elements of a window are
outside of the image on the left and on the right is known of each tile of a row, so that tiles have
no tests.
"""

from gyrator_codegen import Writer, static
from gyrator_codegen_cpp.convolution import ceil_quotient, in_row_major_order, sizes_of, steps_of
from gyrator_codegen_cpp.kernel import parameters
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.define import frozen
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.templates import literal

_PIXELS = 8
"""The most pixels of a tile: enough for the latency of additions, and with few registers."""
_MORE_PIXELS = 14
"""The most if there are 32 registers and a pixel meets more than `_FEW` weights of a row: memory
does not limit these."""
_FEW = 3
_LEAST_WORK = 1 << 18
"""The least number of products for a thread."""


def depthwise_unsupported(kernel: TemplateKernel, isa: Isa) -> str:
    """Return why there is no kernel for a depthwise convolution, or an empty string."""
    if isa not in (Isa.AVX512, Isa.AVX2):
        return "depthwise convolutions need the registers of AVX2"
    tensors = (*kernel.inputs, *kernel.outputs)
    if any(static(n) is None for t in tensors for n in t.shape):
        return "the sizes of a depthwise convolution are not constant"
    if not in_row_major_order(tensors):
        return "the tensors of a depthwise convolution are not in row-major order"
    return ""


@frozen
class _Tile:
    """Neighbouring pixels of a row of the result."""

    pixels: int
    first: int
    """Column of the image, from the beginning of the first pixel's window, that is inside."""
    end: int
    """The column after the last one that is inside."""


def _tiles(kernel: TemplateKernel, isa: Isa) -> list[tuple[_Tile, int, int]]:
    """Return the tiles of a row, with the column of the first one of a run of equal tiles, and the
    column after the last one."""
    _, _, width, _ = sizes_of(kernel.inputs[0])
    _, wide, _ = sizes_of(kernel.inputs[1])
    _, _, columns, _ = sizes_of(kernel.outputs[0])
    _, right, _, left = steps_of(kernel)
    beside = literal(kernel.attributes, "beside", int)
    most = _MORE_PIXELS if wide > _FEW and isa is Isa.AVX512 else _PIXELS
    pixels = ceil_quotient(columns, ceil_quotient(columns, most))
    runs: list[tuple[_Tile, int, int]] = []
    for y in range(0, columns, pixels):
        count = min(pixels, columns - y)
        reach = (count - 1) * right + (wide - 1) * beside + 1
        begin = y * right - left
        first = min(max(0, -begin), reach)
        tile = _Tile(count, first, max(first, min(reach, width - begin)))
        if runs and runs[-1][0] == tile:
            runs[-1] = tile, runs[-1][1], y + count
        else:
            runs.append((tile, y, y + count))
    return runs


def depthwise_body(kernel: TemplateKernel, after: str, cores: int, isa: Isa) -> tuple[str, str]:
    """Return the template arguments of a kernel's tiles, and the body of its function. `after` is
    the function of sums that is stored."""
    w = Writer()
    w.line("(void)sizes;")
    parameters(w, kernel, str)
    x, weight, *bias = kernel.inputs
    (out,) = kernel.outputs
    batch, height, width, channels = sizes_of(x)
    tall, wide, _ = sizes_of(weight)
    _, rows, columns, _ = sizes_of(out)
    down, right, top, left = steps_of(kernel)
    below, beside = (literal(kernel.attributes, name, int) for name in ("below", "beside"))
    lines = ceil_quotient(_LEAST_WORK, columns * channels * tall * wide)
    band = min(rows, max(lines, ceil_quotient(rows, ceil_quotient(cores, batch))))
    bands = ceil_quotient(rows, band)
    masked = int(channels < isa.lanes)
    common = ", ".join(map(str, (after, wide, right, beside, masked)))
    w.line("si64 next = 0;")
    w.line(f"#pragma omp parallel if ({batch * bands} > 1)")
    with w.block("for (;;) {"):
        w.line("const si64 task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);")
        w.line(f"if (task >= {batch * bands}) break;")
        w.line(f"const si64 image = task / {bands}, band = task % {bands};")
        w.line(f"const sf32 *const from = {x.buffer} + image * {height * width * channels};")
        last = f"gy_least((band + 1) * {band}, {rows})"
        with w.block(f"for (si64 i = band * {band}; i < {last}; i++) {{"):
            w.line(f"const si64 start = i * {down} - {top};")
            w.line(f"const gy_taps taps = gy_taps_within(start, {below}, {tall}, {height});")
            at = f"start + taps.first * {below}"
            w.line(f"const sf32 *const row = from + ({at}) * {width * channels};")
            w.line(f"const sf32 *const own = {weight.buffer} + taps.first * {wide * channels};")
            to = f"(image * {rows} + i) * {columns * channels}"
            w.line(f"sf32 *const to = {out.buffer} + {to};")
            for tile, begin, end in _tiles(kernel, isa):
                each = f"{common}, {tile.pixels}, {tile.first}, {tile.end}"
                loop = f"for (si64 y = {begin}; y < {end}; y += {tile.pixels})"
                window = f"row + (y * {right} - {left}) * {channels}, {below * width * channels}"
                added = bias[0].buffer if bias else "nullptr"
                w.line(
                    f"{loop} gy_depthwise_tile<{each}>({window}, taps.count, own, {added}, "
                    f"to + y * {channels}, {channels});"
                )
    w.line("return 0;")
    return common, w.text
