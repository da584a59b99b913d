"""Windows and slices of padded tensors, whose elements lie at strides and under masks."""

import pytest
import torch
import torch.nn.functional as F


def windows(x):
    """Return pools of an image by windows that step over elements and lie partly outside."""
    return (
        F.max_pool2d(x, 3, 2, 1),
        F.max_pool2d(x, (2, 5), (1, 3), (1, 2), dilation=(2, 1), return_indices=True),
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, (1, 4), (1, 3), (0, 2), count_include_pad=False),
        F.avg_pool3d(x, 3, 2, 1),
    )


def slices(x, low):
    """Return padded rows, and slices of them."""
    padded = F.pad(x, (3, 2), value=7)
    kept = torch.where(x > low, x, 3)
    return padded[..., ::2] + 1, padded[..., 1::3] + 1, padded[:, ::5] + 1, kept[..., ::2] * 2


@pytest.mark.parametrize("width", [3, 7, 19, 40, 77])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pools(session, dtype, width):
    x = torch.randn(2, 3, 9, width, dtype=dtype)
    x[0, 0, 2, width // 2] = float("inf")
    x[1, 2, 4, width // 3] = float("nan")
    got = torch.compile(windows, backend=session.backend)(x)
    torch.testing.assert_close(got, windows(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_pools(session, dtype):
    x = torch.randn(2, 3, 9, 37, dtype=dtype, requires_grad=True)

    def loss(x):
        results = windows(x)
        return results[0].square().sum() + sum(r.square().sum() for r in results[2:])

    got = torch.autograd.grad(torch.compile(loss, backend=session.backend)(x), x)
    torch.testing.assert_close(got, torch.autograd.grad(loss(x), x))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("width", [1, 2, 33, 100])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.int16, torch.bool]
)
def test_slices(session, dtype, width, transposed):
    x = torch.randint(-9, 9, (width, 21) if transposed else (21, width)).to(dtype)
    x = x.t() if transposed else x
    compiled = torch.compile(slices, backend=session.backend)
    torch.testing.assert_close(compiled(x, 0), slices(x, 0), rtol=0, atol=0)
