"""Parts of a concatenation that one kernel computes side by side."""

import pytest
import torch

from gyrator.session import Session


def rotated(x, cos, sin):
    """Return rows whose halves are turned by angles."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("half", [1, 3, 8, 16, 33])
def test_halves_read_each_other(dtype, half):
    x, cos, sin = (
        (10 * torch.randn(*shape)).to(dtype) for shape in ((3, 5, 2 * half), (5, half), (5, half))
    )
    with Session(options={"strict": True, "numerics": "bitwise"}) as session:
        got = torch.compile(rotated, backend=session.backend)(x, cos, sin)
    assert torch.equal(got, rotated(x, cos, sin))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("parts", [(16, 16), (8, 8, 8), (16, 32), (32, 16, 16), (7, 9), (1, 1, 1)])
def test_every_part_is_its_own(axis, parts):
    def joined(*tensors):
        steps = [torch.exp(t) if n % 2 else t + n for n, t in enumerate(tensors)]
        return torch.cat(steps, axis).flip(axis) * 2

    shapes = [[6, 17, 24] for _ in parts]
    for shape, extent in zip(shapes, parts, strict=True):
        shape[axis] = extent
    tensors = [torch.randn(shape).requires_grad_() for shape in shapes]
    expected = joined(*tensors)
    weights = torch.randn_like(expected)
    with Session(options={"strict": True}) as session:
        got = torch.compile(joined, backend=session.backend)(*tensors)
        gradients = torch.autograd.grad((got * weights).sum(), tensors)
    torch.testing.assert_close(got, expected)
    want = torch.autograd.grad((expected * weights).sum(), tensors)
    torch.testing.assert_close(gradients, want)


def test_what_is_written_in_place_is_read_before():
    def turn(x):
        x.copy_(torch.cat([x[:, 16:], -x[:, :16]], 1))

    x = torch.randn(4, 32)
    expected = x.clone()
    turn(expected)
    with Session(options={"strict": True}) as session:
        torch.compile(turn, backend=session.backend)(x)
    assert torch.equal(x, expected)
