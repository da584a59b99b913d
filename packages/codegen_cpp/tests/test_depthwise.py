"""Depthwise convolutions by register tiles of neighbouring pixels, against the interpreter."""

import numpy as np
import pytest
from harness import (
    check_image_kernels,
    check_refusal,
    image_kernels,
    kernel_of,
    lacking,
    parameter_lines,
)  # fmt: skip

_ONES = (1, 1)
_WHOLE = {
    "tiles of three kinds": ((1, 9, 31, 32), (3, 3), _ONES, _ONES, (1, 1, 1, 1), True),
    "a tile of a row": ((2, 7, 7, 16), (3, 3), _ONES, _ONES, (1, 1, 1, 1), False),
    "channels that fill no vector": ((1, 5, 12, 5), (3, 3), _ONES, _ONES, (1, 1, 1, 1), True),
    "vectors that overlap": ((1, 6, 20, 21), (5, 5), _ONES, _ONES, (2, 2, 2, 2), True),
    "steps and zeros at the end": ((1, 13, 23, 24), (3, 3), (2, 2), _ONES, (0, 0, 1, 1), True),
    "wide steps": ((2, 14, 29, 18), (5, 3), (3, 4), _ONES, (1, 0, 2, 0), False),
    "windows with gaps": ((1, 12, 15, 16), (3, 3), (1, 2), (3, 2), (3, 1, 3, 2), True),
    "zeros that exceed windows": ((1, 2, 3, 17), (2, 3), _ONES, _ONES, (4, 5, 3, 6), True),
    "one row of a window": ((1, 4, 30, 32), (1, 7), _ONES, _ONES, (0, 3, 0, 3), False),
    "bands of rows": ((1, 70, 40, 128), (3, 3), _ONES, _ONES, (1, 1, 1, 1), True),
    "large windows": ((1, 10, 33, 16), (7, 7), _ONES, _ONES, (3, 3, 3, 3), True),
}
"""Images, windows, steps, gaps, zeros (above, left, below, right), and whether there is a bias."""


def _text(name, x, window, steps, gaps, zeros, biased):
    tall = zip(x[1:3], zeros[:2], zeros[2:], window, steps, gaps, strict=True)
    rows, columns = ((n + a + b - (k - 1) * d - 1) // s + 1 for n, a, b, k, s, d in tall)
    sizes = (x[0], rows, columns, x[3])
    shapes = [x, (*window, x[3]), *([(x[3],)] if biased else []), sizes]
    names = [f"p{n}" for n in range(len(shapes))]
    labels = "down", "right", "top", "left", "below", "beside"
    numbers = zip(labels, (*steps, *zeros[:2], *gaps), strict=True)
    lines = [
        f"kernel {name} on cpu template depthwise ({', '.join(names[:-1])}) -> ({names[-1]}) "
        f"with {{{', '.join(f'{k}={n}' for k, n in numbers)}}}"
    ]
    lines += [
        *parameter_lines(names, shapes),
        "  formula after (sum) -> r", "    o: f32 = const 0.5", "    r: f32 = minimum o, sum",
    ]  # fmt: skip
    return "\n".join(lines) + "\n", shapes


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_depthwise_convolutions_are_those_of_the_interpreter(build_folder, isa: str) -> None:
    """NaN and infinities reach the pixels whose windows have them, and no others."""
    if why := lacking(isa):
        pytest.skip(why)
    texts = {f"k{n}": _text(f"k{n}", *case) for n, case in enumerate(_WHOLE.values())}
    kernels = [kernel_of(text) for text, _ in texts.values()]
    library, _ = image_kernels(kernels, isa, build_folder)

    def spoil(image: np.ndarray) -> None:
        image[0, 1, 1, :3] = np.nan, np.inf, -np.inf

    shapes = [own for _, own in texts.values()]
    for result in check_image_kernels(library, kernels, shapes, spoil):
        assert np.isnan(result).any()
        assert np.isfinite(result).any()


@pytest.mark.parametrize(
    ("isa", "strides", "why"),
    [
        ("avx2", "[8928, 992, 32, 1]", ""),
        ("plain", "[8928, 992, 32, 1]", "AVX2"),
        ("neon", "[8928, 992, 32, 1]", "AVX2"),
        ("avx512", "[8928, 1, 9, 279]", "row-major"),
    ],
)
def test_what_has_a_kernel(isa: str, strides: str, why: str) -> None:
    text, _ = _text("k", *_WHOLE["tiles of three kinds"])
    check_refusal(kernel_of(text.replace("[8928, 992, 32, 1]", strides)), isa, why)
