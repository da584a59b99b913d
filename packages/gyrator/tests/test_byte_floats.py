"""Floats of 8 bits: rounded, moved and read as eager does it; quantised rows are one kernel."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gyrator.reports.explain import explain

pytestmark = pytest.mark.usefixtures("lightly_optimised")
KINDS = (
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip


def check(fn: Callable[..., Any], *args: torch.Tensor, kernels: int | None = None) -> None:
    """Compare signs and values, NaN being equal to NaN, and let nothing be a call of ATen."""
    torch._dynamo.reset()
    explained = explain(fn, *args)
    assert not explained.unlowered
    assert kernels is None or explained.kernels == kernels
    for got, want in zip(explained.result, fn(*args), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert not want.numel() or got.stride() == want.stride()
        got, want = got.double(), want.double()
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(got.signbit() | got.isnan(), want.signbit() | want.isnan())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_conversions(dtype: torch.dtype) -> None:
    bits = torch.randint(-(2**31), 2**31, (20000,)).to(torch.int32).view(torch.float32)
    spread = torch.randn(20000) * torch.logspace(-8, 6, 20000)
    edges = torch.tensor(
        [0.0, 448, 464, 464.5, 480, 61439.9, 61440, 240, 247.9, 248, torch.inf, torch.nan]
    )
    x = torch.cat([bits, spread, edges, -edges]).to(dtype)
    check(lambda x: [x.to(k) for k in KINDS], x)
    check(lambda x: [x.to(k).to(dtype) * 2 for k in KINDS], x[::3])
    every = torch.arange(256, dtype=torch.uint8)
    check(lambda q: [q.view(k).to(dtype) for k in KINDS], every)


def test_rounding_stays_without_intermediate_roundings() -> None:
    x = torch.randn(1000)
    fn = lambda x: x.to(KINDS[0]).to(torch.float32) * 2  # noqa: E731
    fast = torch.compile(fn, backend="gyrator", options={"numerics": "fast"})
    torch.testing.assert_close(fast(x), fn(x), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(33, 100), (3, 1), (0, 5)], ids=str)
def test_quantised_rows_are_one_kernel(shape: tuple[int, ...]) -> None:
    for kind in KINDS:

        def fn(x, kind=kind):
            scale = x.abs().amax(-1, keepdim=True).float() / torch.finfo(kind).max
            return (x.float() / scale).to(kind), scale

        check(fn, torch.randn(shape).bfloat16(), kernels=None if 0 in shape else 1)


def test_moves() -> None:
    q = torch.randn(50, 40).to(KINDS[0])
    at = torch.randint(0, 50, (30,))

    def fn(q, at):
        return (
            q.t().contiguous(), q[at], torch.cat([q, q[:3]]), q[:, ::2].to(torch.float32) * 2,
            torch.where(at[:, None] > 20, q[:30], q[20:]), q.view(torch.uint8) + 1,
        )  # fmt: skip

    check(fn, q, at)


def test_arithmetic_that_eager_lacks_raises_as_in_eager() -> None:
    q = torch.randn(4).to(KINDS[0])
    torch._dynamo.reset()
    with pytest.raises(NotImplementedError, match="add"):
        torch.compile(lambda q: q + 1, backend="gyrator")(q)
