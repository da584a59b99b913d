"""Numbers that are known at run time, as results, in loops and in assertions; numbers as tensors.

Sessions are strict: a graph that ran eagerly would raise.
"""

from typing import Any

import pytest
import torch
import torch_faults

import gyrator
from gyrator.config import Config
from gyrator.session import Session


def compiled(session: Session, function, **options):  # type: ignore[no-untyped-def]
    return torch.compile(function, backend=session.backend, fullgraph=True, **options)


def test_results_that_are_conditions_and_floats(session: Session) -> None:
    def f(x: torch.Tensor) -> tuple[object, ...]:
        n = x.shape[0]
        return x + 1, n > 2, n / 2, n * 2, not (n > 3 and x.shape[1] < 9)

    g = compiled(session, f, dynamic=True)
    for n in (5, 3):
        x = torch.randn(n, 4)
        want, got = f(x), g(x)
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:] and list(map(type, got)) == list(map(type, want))


def test_a_loop_with_a_counter(session: Session) -> None:
    def f(x: torch.Tensor):  # type: ignore[no-untyped-def]
        loop: Any = torch.while_loop
        return loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (0, x))

    x = torch.randn(4)
    n, got = compiled(session, f)(x)
    assert n == 5
    torch.testing.assert_close(got, x * 32)


def test_a_number_of_an_op_of_the_users(session: Session) -> None:
    @torch.library.custom_op("gyrator_numbers::count", mutates_args=())
    def count(x: torch.Tensor) -> int:
        return int((x > 0).sum())

    @count.register_fake
    def _(x):  # type: ignore[no-untyped-def]
        return torch.library.get_ctx().new_dynamic_size()

    x = torch.tensor([1.0, -1.0, 2.0])
    torch.testing.assert_close(compiled(session, lambda x: x + count(x))(x), x + 2)


def test_the_gradient_of_a_product_with_a_complex_number(session: Session) -> None:
    leaves = [torch.randn(4, 2).requires_grad_() for _ in range(2)]
    with torch.no_grad():
        leaves[1].copy_(leaves[0])
    f = lambda x: torch.view_as_complex(x) * (2 + 1j)  # noqa: E731
    for function, x in zip((f, compiled(session, f)), leaves, strict=True):
        function(x).abs().sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)


def test_inputs_in_lists_reach_the_compiler(session: Session) -> None:
    m = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3)

    def train(x: torch.Tensor) -> None:
        m(x).sin().sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(train, backend=session.backend)(x)
    got, m.weight.grad = m.weight.grad, None
    train(x)
    torch.testing.assert_close(got, m.weight.grad)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "f", [lambda x, n: x.clamp(max=n) * n, lambda x, n: x.pow(n) + n, lambda x, n: x * n + int(n)]
)
def test_floats_that_become_constants_in_tracing(session: Session, f: Any, grad: bool) -> None:
    g = compiled(session, f)
    for n in (7.0, 0.5, 0.25, 0.75, 1.25):
        x = torch.rand(5).requires_grad_(grad)
        torch.testing.assert_close(g(x, n), f(x, n))


def test_equal_results_are_tensors_of_their_own(session: Session) -> None:
    f = lambda x: (x + 1, x + 1, (x + 1).t(), torch.zeros(3), torch.zeros(3))  # noqa: E731
    x = torch.randn(2, 3)
    for result in (compiled(session, f)(x), compiled(session, f)(x.clone().requires_grad_())):
        with torch.no_grad():
            for part in result:
                part.zero_()
                part.add_(1)
        assert all((part == 1).all() for part in result)


def test_parts_of_complex_numbers_that_lie_apart(session: Session) -> None:
    """A view that reads elements of another size is copied, whatever its strides."""
    x = torch.randn(5, 10, 7, dtype=torch.complex64).transpose(1, 2)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(x * 1)[..., 0].exp() + 1

    torch.testing.assert_close(compiled(session, f)(x), f(x))


def test_a_size_that_is_guarded_to_be_one_is_broadcast(session: Session) -> None:
    """Torch broadcasts `s0//2` where that is 1, and guards on it: another size compiles anew."""

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = x.view(2, -1)
        return half + y, torch.where(y > 0, half, y), (y - half).mean(1), half.sum(1)

    g = compiled(session, f, dynamic=True)
    for inputs in ((torch.randn(2), torch.randn(2, 3)), (torch.randn(6), torch.randn(2, 3))):
        torch.testing.assert_close(g(*inputs), f(*inputs))


def test_slices_are_written_at_places_counted_from_the_end(session: Session) -> None:
    def f(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
        row, part = torch.zeros(6), torch.ones_like(x[k:])
        return x.select_scatter(row, 0, k), x.slice_scatter(part, 0, k), x[:, k:] + 1

    g = compiled(session, f, dynamic=True)
    x = torch.randn(5, 6)
    for k in (3, -2, -5, 4, 0):
        torch.testing.assert_close(g(x, k), f(x, k))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16, torch.float32])
@pytest.mark.parametrize("number", [7, 300, 2**40, 1e9, -8.5, 1e300])
def test_tensors_that_fill_are_converted_like_numbers(
    session: Session, dtype: torch.dtype, number: float
) -> None:
    x = torch.arange(12).reshape(3, 4).to(dtype)
    at = torch.tensor([2, 0])
    value = torch.tensor(number, dtype=torch.float64 if number == 1e300 else None)
    for f in (lambda x, v: x.masked_fill(x > 3, v), lambda x, v: x.index_fill(0, at, v)):
        try:
            want = f(x, value)
        except RuntimeError:
            with pytest.raises(RuntimeError, match="overflow"):
                compiled(session, f)(x, value)
        else:
            torch.testing.assert_close(compiled(session, f)(x, value), want, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_floats_stored_as_integers_are_truncated(session: Session, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, n: float):  # type: ignore[no-untyped-def]
        at = torch.tensor([[1, 0]])
        padded = torch.nn.functional.pad(x, (1, 1), value=n)
        tested = torch.nn.functional.threshold(x, n, n)
        filled = torch.fill(x, n), x.masked_fill(x > 3, n), x.index_fill(0, at[0], n)
        return padded, tested, *filled, x.scatter(1, at, n), torch.full_like(x, n)

    x = torch.arange(12).reshape(3, 4).to(dtype)
    explained = gyrator.explain(f, x, 7.9, options={"strict": True})
    assert not explained.extern_calls
    for got, want in zip(explained.result, f(x, 7.9), strict=True):
        torch.testing.assert_close(got, want)
    if dtype is torch.uint8:
        for n in (-1.0, -0.5, 255.5):
            with pytest.raises(RuntimeError, match="overflow"):
                torch.nn.functional.pad(x, (1, 1), value=n)
            with pytest.raises(RuntimeError, match="overflow"):
                compiled(session, lambda x: torch.nn.functional.pad(x, (1, 1), value=n))(x)  # noqa: B023


def _first(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    n = (b.long() + 1).item()
    torch._check(n == 2)
    return x * n


def _of_mask(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = x[x > 1 - b.long()]
    torch._check(y.shape[0] == 2)
    return y.view(2) * 2


def _of_slice(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = x[: (b.long() + 1).item()]
    torch._check(y.shape[0] == 2)
    return y.view(2) * 2


def _of_repeats(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = x.repeat_interleave(b.long().reshape(1) + 1)
    torch._check(y.shape[0] == 6)
    return y.view(2, 3) * 2


def _of_counts(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(b.long().reshape(1) + 1)
    torch._check(counts.shape[0] == 3)
    return counts.view(3) + x


def _of_different(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    values = x[x > -1].mul(~b).unique()
    torch._check(values.shape[0] == 1)
    return values.view(1) * 2


def _of_branch(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.cond(b, lambda x: x[:2] * 1, lambda x: x * 1, (x,))
    torch._check(y.shape[0] == 2)
    return y.view(2) * 2


def _of_two_results(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y, z = torch.cond(b, lambda x: (x[:2] * 1, x[1:] * 2), lambda x: (x[:1] * 1, x * 2), (x,))
    torch._check(y.shape[0] == z.shape[0])
    return y + z


def _boolean(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    torch._check((b | (x[0] > 9)).item())
    return x * 2


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
@pytest.mark.parametrize(
    "f",
    [
        _first, _of_mask, _of_slice, _of_repeats, _of_counts, _of_different, _of_branch,
        _of_two_results, pytest.param(_boolean, marks=torch_faults.BOOLEAN_CHECKS),
    ],
)  # fmt: skip
def test_what_a_check_says_of_numbers_is_checked(config: Config, f: Any, wrapper: str) -> None:
    """torch replaces a number's symbol by the value that a check compares it with."""
    options = {"wrapper": wrapper, "strict": True, "progress": False}
    patched = torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    )
    x, right, wrong = torch.arange(3.0), torch.tensor(True), torch.tensor(False)
    with Session(options=options, config=config) as session, patched:
        g = compiled(session, f)
        torch.testing.assert_close(g(x, right), f(x, right))
        with pytest.raises(RuntimeError, match=r"check|assertion"):
            g(x, wrong)


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_booleans_as_numbers_and_conditions(config: Config, wrapper: str) -> None:
    def scaled(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x * (b.item() + 2) + x.new_zeros(b.item() + 2).sum()

    def either(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x * (2 if b.item() else 3)

    options = {"wrapper": wrapper, "strict": True, "progress": False}
    with (
        Session(options=options, config=config) as session,
        torch._dynamo.config.patch(capture_scalar_outputs=True),
    ):
        for f in (scaled, either):
            g = torch.compile(f, backend=session.backend)
            for b in (torch.tensor(True), torch.tensor(False)):
                x = torch.randn(3)
                torch.testing.assert_close(g(x, b), f(x, b))
