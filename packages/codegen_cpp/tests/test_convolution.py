"""Convolutions by register tiles of pixels and features, against the interpreter."""

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

_FUNCTIONS = {
    "none": ("sum", ()),
    "relu": ("r", ("o: f32 = const 0.0", "m: bool = lt sum, o", "r: f32 = where m, o, sum")),
    "silu": (
        "s",
        (
            "one: f32 = const 1.0",
            "n: f32 = neg sum",
            "e: f32 = exp n",
            "d: f32 = add one, e",
            "s: f32 = div sum, d",
            "two: f32 = const 2.0",
        ),
    ),
}
"""Formulas of what follows a convolution: the last one is a function that tiles call."""
_WHOLE = {
    "one row of a tile, with a rest": ((1, 9, 31, 3), (1, 3, 3, 32), (1, 1), (1, 1), "relu", False),
    "whole rows, with a rest": ((2, 7, 7, 20), (2, 3, 3, 32), (1, 1), (1, 1), "relu", True),
    "one vector": ((1, 6, 30, 16), (3, 3, 3, 16), (1, 1), (1, 1), "none", True),
    "strides, no padding": ((1, 12, 17, 4), (1, 4, 3, 32), (4, 2), (0, 0), "none", False),
    "padding that exceeds the image": ((1, 2, 3, 5), (1, 5, 5, 16), (2, 2), (3, 4), "none", False),
    "panels in parts": ((2, 4, 5, 64), (16, 3, 3, 32), (1, 1), (1, 1), "relu", True),
    "bands of rows": ((1, 21, 40, 96), (1, 3, 1, 16), (2, 1), (1, 0), "relu", False),
    "bands of a wide result": ((1, 21, 40, 4), (16, 1, 3, 16), (1, 1), (0, 1), "none", False),
    "parts of an image": ((2, 7, 9, (16, 5, 24)), (1, 3, 3, 32), (1, 1), (1, 1), "silu", True),
    "pixels in place": ((2, 9, 20, 24), (2, 1, 1, 32), (1, 1), (0, 0), "relu", True),
    "some pixels in place": ((1, 9, 20, 24), (2, 1, 1, 16), (2, 3), (0, 0), "silu", False),
    "rows of pixels in place": ((2, 5, 6, 40), (1, 1, 1, 16), (1, 1), (0, 0), "silu", True),
    "pixels of parts": ((1, 5, 6, (8, 9)), (1, 1, 1, 16), (1, 1), (0, 0), "none", False),
    "padded pixels": ((1, 5, 6, 8), (1, 1, 1, 16), (1, 1), (1, 0), "none", False),
    "zeros after pixels": ((2, 5, 6, 8), (1, 1, 1, 16), (1, 2), (0, 0), "none", True, 16, (1, 2)),
    "panels for L2": ((1, 3, 5, 116), (2, 3, 3, 32), (1, 1), (1, 1), "relu", True),
    "a part of a panel": ((2, 7, 9, 12), (3, 1, 1, 16), (1, 1), (0, 0), "silu", True, 41),
    "a part of a panel alone": ((1, 6, 30, 5), (1, 3, 3, 32), (1, 1), (1, 1), "relu", True, 7),
}
"""Images, panels without channels, steps, padding, the function, whether something is added, the
features of the result if these are not all of the panels, and rows and columns of zeros that follow
the images in addition."""


def _text(name, x, panels, steps, padding, after, adds, features=None, zeros=(0, 0)):
    features = features or panels[0] * panels[3]
    sizes = (x[0], *(
        (n + 2 * p + more - k) // s + 1
        for n, p, more, k, s in zip(x[1:3], padding, zeros, panels[1:3], steps, strict=True)
    ), features)  # fmt: skip
    channels = x[3] if isinstance(x[3], tuple) else (x[3],)
    first, *others = ((*x[:3], n) for n in channels)
    weight = (*panels[:3], sum(channels), panels[3])
    bias = (panels[0] * panels[3],)
    shapes = [first, weight, bias, *others, *([sizes] if adds else []), sizes]
    names = [f"p{n}" for n in range(len(shapes))]
    numbers = zip(("down", "right", "top", "left"), (*steps, *padding), strict=True)
    attributes = ", ".join(f"{k}={n}" for k, n in numbers)
    lines = [
        f"kernel {name} on cpu template convolution ({', '.join(names[:-1])}) -> ({names[-1]}) "
        f"with {{{attributes}}}"
    ]
    lines += parameter_lines(names, shapes)
    result, body = _FUNCTIONS[after]
    lines += [f"  formula after (sum) -> {result}", *(f"    {s}" for s in body)]
    return "\n".join(lines) + "\n", shapes


@pytest.mark.parametrize(("isa", "narrower"), [("avx512", 1), ("avx2", 2)])
def test_convolutions_are_those_of_the_interpreter(build_folder, isa: str, narrower: int) -> None:
    """NaN, infinities and signs of zero too. Kernels with the same body share a function."""
    if why := lacking(isa):
        pytest.skip(why)

    def text_of(name, x, panels, steps, padding, after, adds, features=None, *zeros):
        count, *window, width = panels
        width //= narrower
        own = -(-(features or count * panels[3]) // width), *window, width
        return _text(name, x, own, steps, padding, after, adds, features, *zeros)

    texts = {f"k{n}": text_of(f"k{n}", *case) for n, case in enumerate(_WHOLE.values())}
    texts["again"] = text_of("again", *_WHOLE["whole rows, with a rest"])
    text, shapes = text_of("planes", (2, 9, 37, 3), (1, 3, 3, 16), (2, 1), (1, 1), "relu", False)
    assert "[999, 111, 3, 1]" in text
    texts["planes"] = text.replace("[999, 111, 3, 1]", "[999, 37, 1, 333]"), shapes
    kernels = [kernel_of(text) for text, _ in texts.values()]
    library, text = image_kernels(kernels, isa, build_folder)
    assert "return gy_k_k1(buffers, sizes);" in text
    assert all(f"gy_after{n}" in text for n in range(len(_FUNCTIONS)))
    assert "noinline)) vf32 gy_after" in text

    def spoil(image: np.ndarray) -> None:
        image.reshape(-1)[:3] = np.nan, np.inf, -np.inf

    shapes = [own for _, own in texts.values()]
    for result in check_image_kernels(library, kernels, shapes, spoil):
        assert np.isnan(result).any()


@pytest.mark.parametrize(
    ("isa", "strides", "why"),
    [
        ("avx512", "[8928, 992, 32, 1]", ""),
        ("avx2", "[8928, 992, 32, 1]", "panels of 32 features"),
        ("neon", "[8928, 992, 32, 1]", "AVX2"),
        ("avx512", "[8928, 1, 9, 279]", "row-major"),
    ],
)
def test_what_has_a_kernel(isa: str, strides: str, why: str) -> None:
    text, _ = _text("k", *_WHOLE["one row of a tile, with a rest"])
    assert "[8928, 992, 32, 1]" in text
    check_refusal(kernel_of(text.replace("[8928, 992, 32, 1]", strides)), isa, why)
