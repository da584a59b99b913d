"""Results that are views of an argument, which the function writes to after it takes them."""

from collections.abc import Callable

import pytest
import torch

from gyrator.session import Session


def whole(x: torch.Tensor) -> torch.Tensor:
    view = x.as_strided(x.shape, x.stride())
    x.diagonal().fill_(2)
    return view


def placed(x: torch.Tensor) -> torch.Tensor:
    view = x.as_strided((x.shape[0] - 2, x.shape[1]), x.stride(), 7)
    x.add_(1)
    return view


def between(x: torch.Tensor) -> torch.Tensor:
    view = x[1 : x.shape[0] - 1]
    x.add_(1)
    return view


def transposed(x: torch.Tensor) -> torch.Tensor:
    view = x.narrow(0, 1, x.shape[0] - 2).t()
    x.mul_(2)
    return view


def with_an_axis(x: torch.Tensor) -> torch.Tensor:
    view = x.view(x.shape[0], -1, x.shape[1])[1:]
    x.diagonal().fill_(2)
    return view


def before_and_after(x: torch.Tensor) -> torch.Tensor:
    x.neg_()
    view = x[: x.shape[0] - 1]
    view[0] = 5
    return view


def part(x: torch.Tensor) -> torch.Tensor:
    view = x.chunk(2)[1]
    x.mul_(3)
    return view


FUNCTIONS = (whole, placed, between, transposed, with_an_axis, before_and_after)


def _strided(rows: int) -> torch.Tensor:
    """Return a tensor with gaps that does not begin where its memory does."""
    return torch.randn(40 * rows).as_strided((rows, 7), (14, 2), 5)


@pytest.mark.parametrize("make", [_strided, lambda rows: torch.randn(rows, 7)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [part, *FUNCTIONS])
def test_they_lie_where_eager_has_them(
    session: Session,
    function: Callable[[torch.Tensor], torch.Tensor],
    dynamic: bool,
    make: Callable[[int], torch.Tensor],
) -> None:
    run = torch.compile(function, backend=session.backend, dynamic=dynamic, fullgraph=True)
    for rows in (6, 9):
        x = make(rows)
        other = x.new_empty(x.untyped_storage().nbytes() // x.itemsize)
        other.untyped_storage().copy_(x.untyped_storage())
        twin = other.as_strided(x.shape, x.stride(), x.storage_offset())
        actual, expected = run(x), function(twin)
        assert torch.equal(actual, expected) and torch.equal(x, twin)
        assert actual.stride() == expected.stride()
        assert actual.storage_offset() == expected.storage_offset()
        assert actual.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize("function", FUNCTIONS)  # autograd refuses to write to parts
def test_gradients_flow_through_them(
    session: Session, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return function(x * 1).sin()

    run = torch.compile(step, backend=session.backend, dynamic=True, fullgraph=True)
    for rows in (6, 8):
        x = torch.randn(rows, 7, requires_grad=True)
        (actual,) = torch.autograd.grad(run(x).sum(), x)
        (expected,) = torch.autograd.grad(step(x).sum(), x)
        torch.testing.assert_close(actual, expected)
