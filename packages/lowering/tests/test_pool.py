"""Pooling, padding and resizing against eager, with gradients."""

from functools import partial

import pytest
import torch
from attrs import evolve
from torch.nn import functional as F

from gyrator_ir.body.nodes import Load
from gyrator_ir.loop.nodes import Extern, Scatter

CHANNELS_LAST = torch.channels_last
FUNCTIONS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max_plain": lambda x: F.max_pool2d(x, 2),
    "max_dilated": lambda x: F.max_pool2d(x, 2, 1, 0, 2),
    "max_ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "avg": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_inside": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_ceil_inside": lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
    "avg_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "avg_large": lambda x: F.avg_pool2d(x, 7, 2),
    "avg_larger_than_image": lambda x: F.avg_pool2d(x, 640, ceil_mode=True),
    "avg_one_wide_window": lambda x: F.avg_pool2d(x, (40, 3), (40, 2), (5, 1), True, False),
    "avg_one_padded_window": lambda x: F.avg_pool2d(x, (12, 3), 1, (2, 0), True, True),
    "adaptive_one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_even": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "adaptive_uneven": lambda x: F.adaptive_avg_pool2d(x, (5, 7)),
    "adaptive_more": lambda x: F.adaptive_avg_pool2d(x, (11, 10)),
    "reflect": lambda x: F.pad(x, (2, 1, 3, 4), mode="reflect"),
    "replicate": lambda x: F.pad(x, (2, 1, 3, 4), mode="replicate"),
    "constant": lambda x: F.pad(x, (2, 1, -3, 4), value=1.5),
    "circular": lambda x: F.pad(x, (2, 1, 3, 4), mode="circular"),
    "circular_after": lambda x: F.pad(x, (0, 9, 0, 0), mode="circular"),
    "circular_cropped": lambda x: F.pad(x, (-2, 3, 1, -4), mode="circular"),
    "nearest_double": lambda x: F.interpolate(x, scale_factor=2),
    "nearest_odd": lambda x: F.interpolate(x, size=(11, 5)),
    "nearest_exact": lambda x: F.interpolate(x, size=(11, 5), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, size=(11, 14), mode="bilinear"),
    "bilinear_corners": lambda x: F.interpolate(
        x, size=(11, 5), mode="bilinear", align_corners=True
    ),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "adaptive_max_even": lambda x: F.adaptive_max_pool2d(x, (4, 3)),
    "adaptive_max_uneven": lambda x: F.adaptive_max_pool2d(x, (5, 7), return_indices=True),
    "unfold": lambda x: F.unfold(x, 3),
    "unfold_patches": lambda x: F.unfold(x, (2, 3), stride=(2, 3)),
    "unfold_padded": lambda x: F.unfold(x, (3, 2), padding=(2, 1), stride=(2, 1)),
    "unfold_dilated": lambda x: F.unfold(x, 2, dilation=(1, 2), padding=1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_planes(check, name: str, dtype: torch.dtype) -> None:
    if name == "max_indices" and dtype is torch.bfloat16:
        dtype = torch.float64
    x = torch.randn(2, 4, 8, 9).to(dtype)
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {}
    check.gradients(FUNCTIONS[name], x, **tolerance)


@pytest.mark.parametrize("name", ["max", "avg", "adaptive_one", "reflect", "nearest_double"])
def test_channels_last(check, name: str) -> None:
    x = torch.randn(2, 4, 8, 9).to(memory_format=torch.channels_last)
    check(FUNCTIONS[name], x)


@pytest.mark.parametrize("size", [(2, 2), (3, 2), (7, 3), (9, 4), (2, 20), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_wide_adaptive_windows_are_scattered(check, dtype, size) -> None:
    (target,) = check.targets.values()
    for scatters in (True, False):
        prefers = evolve(target, heuristics=evolve(target.heuristics, scatter_choices=scatters))
        check.targets = {target.device: prefers}
        x = torch.randn(2, 3, 11, 14).to(dtype)
        for image in (x, x.to(memory_format=CHANNELS_LAST), x.transpose(2, 3), x[:0]):
            *_, backward = check.gradients(lambda x: F.adaptive_avg_pool2d(x, size), image)
            overlap = any(n % w for n, w in zip(image.shape[2:], size, strict=True))
            if image.numel() and image.shape[3] >= 4 * size[1] and overlap:
                has_scatter = any(isinstance(op, Scatter) for op in backward.operations)
                assert has_scatter is scatters


@pytest.mark.parametrize("size", [(5, 3, 2), (2, 3, 4), (1, 1, 1), (7, 8, 9)])
def test_gradients_of_adaptive_windows_in_volumes(check, size) -> None:
    """Those of windows that overlap are left to ATen where the target prefers to scatter."""
    (target,) = check.targets.values()
    for scatters in (True, False):
        prefers = evolve(target, heuristics=evolve(target.heuristics, scatter_choices=scatters))
        check.targets = {target.device: prefers}
        x = torch.randn(2, 2, 5, 6, 4)
        overlap = any(n % w for n, w in zip(x.shape[2:], size, strict=True))
        calls = ["aten._adaptive_avg_pool3d_backward.default"] if overlap and scatters else []
        pool = partial(F.adaptive_avg_pool3d, output_size=size)
        *_, backward = check.gradients(pool, x, externs=calls)
        assert [op.target for op in backward.operations if isinstance(op, Extern)] == calls


@pytest.mark.parametrize(("size", "masked"), [((4, 3), False), ((8, 9), False), ((4, 5), True)])
def test_gradients_of_even_adaptive_windows_have_no_masks(check, size, masked: bool) -> None:
    x = torch.randn(2, 3, 8, 9)
    *_, backward = check.gradients(lambda x: F.adaptive_avg_pool2d(x, size), x)
    loads = [s for op in backward.operations for s in op.body if isinstance(s, Load)]
    assert any(s.mask is not None for s in loads) is masked


def test_fold(check) -> None:
    x = torch.randn(2, 15, 12).transpose(1, 2)
    check.gradients(lambda x: F.fold(x, (7, 9), (2, 3), stride=2, padding=(0, 1)), x)
    check.gradients(lambda x: F.fold(x, (8, 9), (2, 1)), torch.randn(6, 63))
    check.gradients(lambda x: F.fold(x, (4, 6), 2, stride=2), torch.randn(2, 8, 6))
    check.gradients(lambda x: F.fold(x, 7, 7), torch.randn(2, 98, 1))
    check(
        lambda x: F.unfold(x, 3, padding=1),
        torch.randn(2, 3, 5, 6),
        other=(torch.randn(2, 3, 9, 7),),
    )


def test_integers_padded_with_a_fraction(check) -> None:
    for dtype in (torch.int64, torch.int8, torch.bool):
        check(lambda x: F.pad(x, (1, 2), value=-5.5), torch.arange(6).view(2, 3).to(dtype))


def test_lines_and_volumes(check) -> None:
    x = torch.randn(2, 3, 10)
    check.gradients(lambda x: F.avg_pool1d(x, 3, 2, 1), x)
    check.gradients(lambda x: F.max_pool1d(x, 3, 2), x)
    check.gradients(lambda x: F.adaptive_avg_pool1d(x, 4), x)
    check.gradients(lambda x: F.pad(x, (2, 3), mode="reflect"), x)
    check.gradients(lambda x: F.interpolate(x, scale_factor=3), x)
    volume = torch.randn(2, 2, 5, 6, 7)
    check.gradients(lambda x: F.avg_pool3d(x, 2), volume)
    check.gradients(lambda x: F.max_pool3d(x, 2), volume)


def test_nan_wins_in_max_pool(check) -> None:
    x = torch.randn(1, 1, 6, 6)
    x[0, 0, 2, 3] = float("nan")
    x[0, 0, 4] = float("-inf")
    check(lambda x: F.max_pool2d(x, 3, 1, 1), x)


@pytest.mark.parametrize("dilation", [1, 2])
def test_windows_of_lowest_values_report_the_first_index(check, dilation: int) -> None:
    x = torch.full((1, 2, 8, 9), float("-inf"))
    x[:, 1, ::3, 4:] = torch.randn(3, 5)
    check.gradients(lambda x: F.max_pool2d(x, 3, 2, 1, dilation, return_indices=True), x)


def test_symbolic_planes(check) -> None:
    check(
        lambda x: F.adaptive_avg_pool2d(x, 1),
        torch.randn(2, 3, 8, 9),
        other=(torch.randn(4, 2, 5, 7),),
    )
    check(
        lambda x: F.max_pool2d(x, 3, 2, 1),
        torch.randn(2, 3, 8, 9),
        other=(torch.randn(4, 2, 5, 7),),
    )


@pytest.mark.parametrize("name", ["max", "max_plain", "max_ceil", "reflect"])
def test_gradients_are_scattered_where_the_target_prefers_it(check, name: str) -> None:
    (target,) = check.targets.values()
    for kind in (True, False):
        prefers = evolve(target, heuristics=evolve(target.heuristics, scatter_choices=kind))
        check.targets = {target.device: prefers}
        for x in (torch.randn(2, 3, 8, 9), torch.randn(2, 3, 8, 9).to(memory_format=CHANNELS_LAST)):
            *_, backward = check.gradients(FUNCTIONS[name], x)
            assert any(isinstance(op, Scatter) for op in backward.operations) is kind


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_reflection_padding_of_any_width(check, rank: int) -> None:
    size = (4, 3, 5)[:rank]
    widest = tuple(n - 1 for n in reversed(size) for _ in ("before", "after"))
    for pad in (widest, (1, 0) * rank, (0, 2) * rank, (0, 0) * rank):
        check.gradients(lambda x, pad=pad: F.pad(x, pad, "reflect"), torch.randn(2, 2, *size))


@pytest.mark.parametrize("pad", [(-2, 1), (1, -2), (-1, -1)])
def test_cropping_reflection_padding(check, pad: tuple[int, int]) -> None:
    def gradient(grad, x):
        return torch.ops.aten.reflection_pad1d_backward.default(grad, x, pad)

    check(gradient, torch.randn(2, 6 + sum(pad)), torch.randn(2, 6))


def test_reflection_padding_of_symbolic_planes(check) -> None:
    def gradient(grad, x):
        return torch.ops.aten.reflection_pad2d_backward.default(grad, x, (2, 1, 0, 3))

    sizes = (((2, 3, 8, 9), (2, 3, 11, 12)), ((1, 2, 5, 4), (1, 2, 8, 7)))
    first, other = (tuple(map(torch.randn, pair[::-1])) for pair in sizes)
    check(gradient, *first, other=other)


@pytest.mark.parametrize("rank", [2, 3])
def test_max_unpool(check, rank: int) -> None:
    pool, unpool = getattr(F, f"max_pool{rank}d"), getattr(F, f"max_unpool{rank}d")
    values, indices = pool(torch.randn(2, 3, *[4] * rank), 2, return_indices=True)
    program = check(lambda x, i: unpool(x, i, 2), values, indices)
    outside = torch.full_like(indices, 4**rank)
    with pytest.raises(RuntimeError, match="out of bounds"):
        check._run(program, lambda *_: [], (values, outside), True, None, None)


@pytest.mark.parametrize("size", [(0, 3), (3, 0)])
def test_no_adaptive_windows(check, size) -> None:
    calls = ("aten._adaptive_avg_pool2d.default", "aten.adaptive_max_pool2d.default")
    x = torch.randn(1, 2, 5, 7)
    check(lambda x: F.adaptive_avg_pool2d(x, size), x, externs=calls)
    check(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x, externs=calls)


def test_integers_are_resized_as_eager_rounds(check) -> None:
    x = torch.randint(0, 256, (1, 3, 5, 5), dtype=torch.uint8)
    check(
        lambda x: F.interpolate(x, size=(7, 7), mode="bilinear"),
        x,
        externs=("aten.upsample_bilinear2d.default",),
    )


@pytest.mark.parametrize("scales", [(1.05, 1.7), (2.1, 1.05)])
def test_gradients_of_resizing_ignore_scales_that_keep_a_size(check, scales) -> None:
    sizes = [int(n * scale) for n, scale in zip((5, 7), scales, strict=True)]

    def gradients(grad):
        nearest = torch.ops.aten.upsample_nearest2d_backward(grad, sizes, (1, 2, 5, 7), *scales)
        args = (grad, sizes, (1, 2, 5, 7), False, *scales)
        return nearest, torch.ops.aten.upsample_bilinear2d_backward(*args)

    check(gradients, torch.randn(1, 2, *sizes))
