"""Parts of a concatenation that one kernel computes side by side."""

from math import inf, nan

import pytest
import torch
from torch import nn


def rotated(x, cos, sin):
    """Return rows whose halves are turned by angles."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_halves_read_each_other(bitwise, dtype):
    def run(inputs):
        return [rotated(*one) for one in inputs]

    inputs = [
        [(10 * torch.randn(*s)).to(dtype) for s in ((3, 5, 2 * half), (5, half), (5, half))]
        for half in (1, 3, 8, 16, 33)
    ]
    got = torch.compile(run, backend=bitwise.backend)(inputs)
    for one, want in zip(got, run(inputs), strict=True):
        assert torch.equal(one, want), want.shape


@pytest.mark.parametrize("parts", [(16, 16), (8, 8, 8), (16, 32), (32, 16, 16), (7, 9), (1, 1, 1)])
def test_every_part_is_its_own(session, parts):
    def joined(inputs):
        results = []
        for axis, tensors in enumerate(inputs):
            steps = [torch.exp(t) if n % 2 else t + n for n, t in enumerate(tensors)]
            results.append(torch.cat(steps, axis).flip(axis) * 2)
        return results

    sizes = [6, 17, 24]
    inputs = [
        [torch.randn(*sizes[:axis], n, *sizes[axis + 1 :], requires_grad=True) for n in parts]
        for axis in range(3)
    ]
    leaves = [t for tensors in inputs for t in tensors]
    expected = joined(inputs)
    weights = [torch.randn_like(one) for one in expected]
    got = torch.compile(joined, backend=session.backend)(inputs)
    torch.testing.assert_close(got, expected)
    gradients, want = (torch.autograd.grad(r, leaves, weights) for r in (got, expected))
    torch.testing.assert_close(gradients, want)


def test_what_is_written_in_place_is_read_before(session):
    def turn(x):
        x.copy_(torch.cat([x[:, 16:], -x[:, :16]], 1))

    x = torch.randn(4, 32)
    expected = x.clone()
    turn(expected)
    torch.compile(turn, backend=session.backend)(x)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool]
)
def test_parts_are_copied_one_after_the_other(session, dtype):
    def joined(inputs):
        return [(torch.cat([x, y], -1), torch.cat([y, x[:, :1], y], 1)) for x, y in inputs]

    sizes = (1, 8, 16, 100, 2500)
    inputs = [[(9 * torch.randn(3, n, n % 7 + 1)).to(dtype) for _ in "xy"] for n in sizes]
    inputs += [[(9 * torch.randn(5, n)).to(dtype) for _ in "xy"] for n in sizes]
    inputs = [(x, y.flip(0)) for x, y in inputs]
    got = torch.compile(joined, backend=session.backend)(inputs)
    for one, want in zip(got, joined(inputs), strict=True):
        assert all(map(torch.equal, one, want)), want[0].shape


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("target", "isa"), [("cpu", ""), ("cpu", "avx2"), ("cpu", "plain"), ("llvm", "")]
)
@torch.no_grad()
def test_upsampled_images_are_joined_to_others(on_target, monkeypatch, target, isa, dynamic):
    """Rows and columns that are looked up, along channels that are adjacent. What is joined has
    statistics, which run over all channels of a pixel, all pixels of a channel, and all."""

    def joined(x, y):
        up = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
        all_channels = torch.cat([y, up, y.abs()], 1)
        last = torch.cat([up, y], 1)
        return all_channels, last.exp(), last.sum((2, 3)), all_channels.amax(1), last.double().sum()

    if isa:
        monkeypatch.setenv("GYRATOR_ISA", isa)
    run, _ = on_target(joined, target, dynamic)
    for channels, others, height, width in ((37, 5, 3, 4), (16, 32, 2, 7), (3, 2, 4, 3)):
        x = torch.randn(2, channels, height, width).to(memory_format=torch.channels_last)
        y = torch.randn(2, others, 2 * height, 2 * width).to(memory_format=torch.channels_last)
        special = x.clone()
        special[0, 0, 0, 1], special[1, channels - 1, height - 1, width - 1] = nan, -inf
        for image in (x, special):
            for actual, expected in zip(run(image, y), joined(image, y), strict=True):
                torch.testing.assert_close(actual, expected, equal_nan=True)
                assert actual.stride() == expected.stride()
