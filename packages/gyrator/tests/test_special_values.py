"""Values at the edges of the types: zeros with signs, infinities, NaN, numbers that overflow, least
integers, divisors of 0, places outside, and extremes of nothing.

A graph holds many ops. What is exact is compared with its sign; eager is the reference but where it
ends the process.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_faults
from torch.nn import functional as F

from gyrator.session import Session

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
SPECIAL = (NAN, INF, -INF, -0.0, 0.0, 1e-40, 1e30, -1e30, 65504.0, -3.0, 3.0, 1.0, -1.0, 0.5, 2.5)
EXACT: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, 0.0, 2.0),
    "clamp": lambda x: (x.clamp(0.0, 2.0), x.clamp(min=-0.0), x.clamp(max=0.0), x.clamp(max=-0.0)),
    "clamp_nan": lambda x: x.clamp(NAN, 2.0),
    "running": lambda x: (x[3:].cummax(0), x[3:].cummin(0), x.cummax(0), x.cummin(0)),
    "roots": lambda x: (x**0.5, x**-0.5),
    "truncated": lambda x: torch.div(x, x.flip(0) * 3 + 1 / 3, rounding_mode="trunc"),
    "powers_of_two": lambda x: tuple(
        torch.ldexp(x, (torch.arange(len(x)) * 37 % 240 - 120).to(dtype)) for dtype in INTEGERS
    ),
    "norm_of_one": lambda x: (x[:, None].norm(dim=1), F.normalize(x[:, None], dim=1)),
}


def compiled(session: Session, function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=session.backend, **options)


def assert_same(got: Any, want: Any, name: str, rtol: float = 0.0) -> None:
    """Assert equal values and, of zeros, equal signs."""
    if isinstance(want, tuple):
        for part, other in zip(got, want, strict=True):
            assert_same(part, other, name, rtol)
        return
    at = lambda message: f"{name}: {message}"  # noqa: E731
    torch.testing.assert_close(got, want, rtol=rtol, atol=0.0, equal_nan=True, msg=at)
    zero = want == 0
    assert torch.equal(got[zero].signbit(), want[zero].signbit()), name


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ops_at_special_values(session: Session, dtype: torch.dtype) -> None:
    rtol = {torch.float32: 1e-6, torch.float64: 1e-14}.get(dtype, 1e-2)
    x = torch.tensor(SPECIAL * 3, dtype=torch.float64).to(dtype)
    for inputs in (x, x[:3], x.repeat_interleave(2)[::2]):
        g = compiled(session, lambda x: [f(x) for f in EXACT.values()])
        for name, got, f in zip(EXACT, g(inputs), EXACT.values(), strict=True):
            assert_same(got, f(inputs), name, rtol if name == "roots" else 0.0)


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
@pytest.mark.parametrize("scalar", [257.0, 2049.0, -0.3001], ids=str)
def test_scalars_that_narrow_floats_do_not_hold(
    session: Session, dtype: torch.dtype, scalar: float
) -> None:
    """Eager rounds scalars to the dtype, except factors and divisors on the right."""

    def program(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        binary = torch.mul, torch.div, torch.hypot, torch.atan2
        both = [f(a, b) for f in binary for a, b in ((x, s), (s, x))]
        whole = torch.div(x, s, rounding_mode="trunc"), torch.div(s, x, rounding_mode="trunc")
        fused = torch.addcmul(x, x, s), torch.addcmul(s, x, x), torch.addcdiv(x, s, x)
        return *both, *whole, *fused, torch.lerp(x, x.flip(0), scalar)

    x = torch.tensor((1.0, 2.0, 3.0, 5.0, 7.0, 13.0, -3.0, 256.0, 2048.0, 0.5, 33.0) * 4).to(dtype)
    for kind in (torch.float32, torch.float64):
        s = torch.tensor(scalar, dtype=kind)
        for got, want in zip(compiled(session, program)(x, s), program(x, s), strict=True):
            torch.testing.assert_close(got, want, rtol=torch.finfo(dtype).eps / 4, atol=0.0)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_gradients_at_special_values(session: Session, dtype: torch.dtype) -> None:
    functions = (
        F.hardswish, F.hardsigmoid, F.elu, F.selu, F.celu, F.hardtanh, F.relu6, F.softshrink,
        F.leaky_relu, lambda x: F.threshold(x, 0.1, 0.5),
        lambda x: F.smooth_l1_loss(x, x * 0.5, reduction="none"),
        lambda x: F.huber_loss(x, x * 0.5, reduction="none", delta=1.5),
    )  # fmt: skip
    leaf = torch.tensor([SPECIAL * 3] * len(functions), dtype=dtype).requires_grad_()

    def f(x: torch.Tensor) -> torch.Tensor:
        return sum(g(row) for g, row in zip(functions, x.unbind(), strict=True))  # type: ignore

    got, want = (torch.autograd.grad(g(leaf).sum(), leaf)[0] for g in (compiled(session, f), f))
    assert_same(got, want, "gradients", 1e-6)


@pytest.mark.parametrize("dtype", FLOATS[:1] + FLOATS[3:], ids=str)
def test_deviations_whose_squares_overflow(session: Session, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        spread, mean = torch.std_mean(x, 1, keepdim=True)
        return x.std(), x.std(0), x.std(1), spread, x.var(0), mean * mean.isfinite().logical_not()

    rows = torch.tensor([[3e19, -1e19, 2e19, 5.0, 1.0], [1e30, -1e30, 3.0, 2.0, 1.0]] * 2)
    infinite = torch.tensor([[1.0, INF, 2.0, 3.0], [1.0, -INF, 2.0, INF], [1.0, NAN, 2.0, 3.0]])
    for x in (rows.to(dtype), rows.repeat(9, 40).to(dtype), infinite.to(dtype)):
        for got, want in zip(compiled(session, f)(x), f(x), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
def test_integers_that_narrow_floats_do_not_hold(session: Session, dtype: torch.dtype) -> None:
    def f(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return i + x, i * x, torch.fmod(i, x), torch.maximum(i, x), i == x, i - i.to(x.dtype), x / i

    x = torch.rand(64).to(dtype) + 0.75
    for kind in (torch.int16, torch.int32, torch.int64, torch.uint8):
        i = torch.randint(1, min(torch.iinfo(kind).max, 100000), (64,)).to(kind)
        assert_same(compiled(session, f)(i, x), f(i, x), str(kind))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8], ids=str)
def test_the_least_integer_ends_no_process(session: Session, dtype: torch.dtype) -> None:
    """Eager's truncated quotient of the least integer and -1, and some of its `lcm`, trap."""

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        quotient = torch.div(x, y, rounding_mode="trunc")
        return quotient, torch.lcm(x, y), x // y, x % y, torch.fmod(x, y), torch.gcd(x, y)

    info = torch.iinfo(dtype)
    x = torch.randint(-99, 99, (40,)).to(dtype)
    y = torch.randint(1, 9, (40,)).to(dtype) * torch.tensor([1, -1] * 20, dtype=dtype)
    g = compiled(session, f)
    assert_same(g(x, y), f(x, y), "quotients")
    least = torch.tensor([info.min] * 4, dtype=dtype)
    divisors = torch.tensor([-1, 7, info.min, 3], dtype=dtype)
    want = torch.tensor([info.min, -(-info.min // 7), 1, -(-info.min // 3)], dtype=dtype)
    got = g(least, divisors)
    assert torch.equal(got[0], want)
    assert got[1][0] == info.min and got[1][2] == info.min


@pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [
        pytest.param(dtype, dynamic, marks=pytest.mark.long if (k + dynamic) % 2 else ())
        for k, dtype in enumerate((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
        for dynamic in (False, True)
    ],
)
def test_integers_divided_by_tensors(session: Session, dtype: torch.dtype, dynamic: bool) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        quotient = torch.div(x, y, rounding_mode="trunc")
        return quotient, x // y, x % y, torch.fmod(x, y), (x // y)[:, :1] + 1

    g = compiled(session, f, dynamic=dynamic)
    info = torch.iinfo(dtype)
    for rows, columns in ((7, 33), (1, 5), (4, 0), (3, 17)):
        x = torch.randint(info.min + 1, info.max, (columns, rows)).to(dtype).T
        y = torch.randint(1, 100, (columns,)).to(dtype)
        y[::2] = -y[::2] if info.min < 0 else y[::2]
        assert_same(g(x, y), f(x, y), f"{rows} x {columns}")
        if columns:
            y[-1] = 0
            with pytest.raises(RuntimeError, match="ZeroDivision"):
                g(x, y)


@pytest.mark.parametrize("name", ["trunc", "floor", "remainder", "fmod"])
def test_integers_divided_by_zero_raise(session: Session, name: str) -> None:
    ops: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc") + 1,
        "floor": lambda x, y: x // y + 1,
        "remainder": lambda x, y: x % y + 1,
        "fmod": lambda x, y: torch.fmod(x, y) + 1,
    }
    x, y = torch.arange(20), torch.arange(20)
    for f in (ops[name], lambda x, y: ops[name](x, 0)):
        for function in (f, compiled(session, f)):
            with pytest.raises(RuntimeError, match="ZeroDivision"):
                function(x, y)


EXTREMES: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda x: x.max(1),
    lambda x: x.min(1),
    lambda x: x.max(1)[0],
    lambda x: x.argmax(1),
    lambda x: x.max(),
)


@torch_faults.OTHER_ERRORS
@pytest.mark.parametrize("dynamic", [False, True])
def test_extremes_of_nothing_raise_as_eager_does(session: Session, dynamic: bool) -> None:
    empty = torch.zeros(3, 0)
    for f in EXTREMES:
        g = compiled(session, f, dynamic=dynamic)
        if dynamic:
            g(torch.randn(3, 4))
        with pytest.raises((IndexError, RuntimeError)) as expected:
            f(empty)
        with pytest.raises(expected.type):
            g(empty)
        torch.testing.assert_close(g(torch.randn(3, 1).fill_(2)), f(torch.full((3, 1), 2.0)))


def test_extremes_of_a_selection_without_elements_raise(session: Session) -> None:
    f = lambda x: (x[x > 0] * 2).max(0)[0]  # noqa: E731
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        g = compiled(session, f, fullgraph=True)
        x = torch.randn(9)
        torch.testing.assert_close(g(x), f(x))
        with pytest.raises(IndexError):
            g(-x.abs())


def test_copies_to_negative_places_raise(session: Session) -> None:
    def f(x: torch.Tensor, at: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.index_copy(1, at, y) + 1

    x, y = torch.randn(4, 6), torch.randn(4, 2)
    g = compiled(session, f)
    torch.testing.assert_close(g(x, torch.tensor([5, 0]), y), f(x, torch.tensor([5, 0]), y))
    for place in (-1, 6):
        with pytest.raises(IndexError):
            g(x, torch.tensor([0, place]), y)


@pytest.mark.parametrize("dynamic", [False, True])
def test_slices_filled_at_places(session: Session, dynamic: bool) -> None:
    def f(x: torch.Tensor, at: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = x.to(torch.int32).index_fill(0, at, 3), (x > 0).index_fill(-1, at, True)
        return x.index_fill(0, at, 2), x.index_fill(-1, at, value), *whole

    at = torch.tensor([0, -1, 0])
    g = compiled(session, f, dynamic=dynamic)
    for x in (torch.randn(6, 3).t(), torch.randn(2, 1, 5), torch.randn(1, 4).to(torch.bfloat16)):
        for got, want in zip(g(x, at, x.new_tensor(0.5)), f(x, at, x.new_tensor(0.5)), strict=True):
            torch.testing.assert_close(got, want, rtol=0.0, atol=0.0, check_stride=True)
    with pytest.raises(IndexError):
        g(torch.randn(2, 3), torch.tensor([3]), torch.tensor(0.5))


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_the_manual_promises_where_eager_has_several_answers(
    session: Session, dtype: torch.dtype
) -> None:
    """`gelu` at the infinities, `hardshrink` at NaN, and draws with what is no probability."""
    ends = torch.tensor([INF, -INF, NAN, 0.0], dtype=dtype).repeat(9)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.gelu(x), torch.bernoulli(torch.full_like(x, 2.0, dtype=torch.float32))

    gelu, drawn = compiled(session, f)(ends)
    want = torch.tensor([INF, NAN, NAN, 0.0], dtype=dtype).repeat(9)
    torch.testing.assert_close(gelu, want, rtol=0.0, atol=0.0, equal_nan=True)
    assert bool(((drawn == 0) | (drawn == 1)).all())

    x = ends.clone().requires_grad_()
    compiled(session, F.hardshrink)(x).backward(torch.full_like(x, 3))
    slopes = torch.tensor([3.0, 3.0, 3.0, 0.0], dtype=dtype).repeat(9)
    torch.testing.assert_close(x.grad, slopes, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_running_sums_of_exponentials(session: Session, dtype: torch.dtype) -> None:
    starts = ([], [-INF, -INF], [-INF, -1e30], [INF, -INF], [NAN], [0.0, -46.0], [-0.001, -7.0])
    rest = torch.randn(len(starts), 40) * 9
    rows = [torch.cat([torch.tensor(s), row])[:40] for s, row in zip(starts, rest, strict=True)]
    x = torch.stack([*rows, *(row.flip(0) for row in rows), torch.full((40,), -INF)]).to(dtype)

    def run(x: torch.Tensor) -> Any:
        return x.logcumsumexp(1), x.mT.contiguous().logcumsumexp(0), x[0].logcumsumexp(0)

    got = compiled(session, run)(x)
    wants = run(x if dtype in FLOATS[:2] else x.double())
    for one, want in zip(got, wants, strict=True):
        torch.testing.assert_close(one, want.to(dtype), equal_nan=True)
