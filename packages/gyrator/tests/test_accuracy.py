"""The rule that judges results, on errors with known answers."""

import pytest
import torch
from torch import Tensor

from gyrator.reports.accuracy import block_errors, within_bound, worst_error
from gyrator.session import Session


def test_float32_may_err_twice_as_much_as_eager_and_narrow_types_no_more() -> None:
    assert within_bound([2.0e-7], [1.0e-7], torch.float32)
    assert not within_bound([2.1e-7], [1.0e-7], torch.float32)
    assert within_bound([1.0e-3], [1.0e-3], torch.bfloat16)
    assert not within_bound([1.001e-3], [1.0e-3], torch.bfloat16)


def test_several_draws_are_judged_by_their_mean_and_its_error() -> None:
    eager = [1.0, 1.0, 1.0, 1.0]
    assert within_bound([1.1, 0.9, 1.12, 0.92], eager, torch.bfloat16)
    assert not within_bound([1.011, 1.009, 1.012, 1.008], eager, torch.bfloat16)
    assert within_bound([0.9, 0.91, 0.89, 0.9], eager, torch.bfloat16)


def test_an_infinite_error_is_never_right() -> None:
    assert not within_bound([float("inf"), 0.1], [1.0, 1.0], torch.bfloat16)
    assert within_bound([0.0, 0.1], [0.0, 0.1], torch.bfloat16)
    assert not within_bound([1e-9, 0.1], [0.0, 0.1], torch.bfloat16)


def test_small_blocks_are_judged_by_the_means_of_draws() -> None:
    eps = torch.finfo(torch.float32).eps
    assert block_errors([(6.0, 1.0), (1.5, 4.0)], torch.float32, 9.0) == pytest.approx((3, 2, 4))
    ours, eager, bound = block_errors([(0.0, 0.0), (0.0, 0.0)], torch.float32)
    assert ours < bound == eps and eager < eps
    ours, _, bound = block_errors([(1.0, 1.0), (float("inf"), 1.0)], torch.float32, float("inf"))
    assert ours > bound


def test_a_draw_far_above_its_bound_ends_them() -> None:
    draws = iter([(3.0, 1.0), (5.0, 1.0), (1.0, 1.0)])
    assert block_errors(draws, torch.float32) == (5.0, 1.0, 2.0)
    assert list(draws) == [(1.0, 1.0)]


def test_gradients_are_taken_together() -> None:
    exact = [torch.tensor(2.0).double(), torch.tensor([3.0]).double(), torch.zeros(1).double()]
    got = [torch.tensor(2.0), torch.tensor([3.0]), torch.tensor([0.3])]
    assert worst_error(got, exact, single=1) == pytest.approx(0.1)
    assert worst_error(got, exact, single=3) == float("inf")


def test_statistics_of_a_batch_are_as_exact_as_eagers(session: Session) -> None:
    """Where terms cancel: the mean is 10,000 times the deviation."""
    x = torch.randn(64, 3, 20, 20) * 0.01 + 100
    gradient, zeros, ones = torch.randn_like(x) + 1, torch.zeros(3), torch.ones(3)
    forward = torch.ops.aten._native_batch_norm_legit_functional.default
    backward = torch.ops.aten.native_batch_norm_backward.default
    every = [True, True, True]

    def step(x: Tensor, g: Tensor, zeros: Tensor, ones: Tensor) -> tuple[Tensor, ...]:
        _, mean, rstd, *running = forward(x, ones, zeros, zeros, ones, True, 0.1, 1e-5)
        _, along, plain = backward(g, x, ones, zeros, ones, mean, rstd, True, 1e-5, every)
        return mean, rstd, *running, along, plain

    inputs = (x, gradient, zeros, ones)
    exact = step(*(t.double() for t in inputs))
    actual = torch.compile(step, backend=session.backend)(*inputs)
    for got, eager, true in zip(actual, step(*inputs), exact, strict=True):
        allowed = 2 * (eager.double() - true).norm() + 6e-8 * true.norm()
        assert (got.double() - true).norm() <= allowed


@pytest.mark.parametrize("size", [2, 6, 32])
@pytest.mark.parametrize("dynamic", [False, True])
def test_norms_of_adjacent_groups_are_as_exact_as_eagers(
    session: Session, size: int, dynamic: bool
) -> None:
    """Channels are summed before their groups. The mean is 1,000 times the deviation."""
    x = torch.randn(2, 4 * size, 30, 17).mul(0.1).add(100).to(memory_format=torch.channels_last)
    w, b = torch.randn(4 * size), torch.randn(4 * size)

    def norm(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.native_group_norm(x, w, b, *x.shape[:2], x[0, 0].numel(), 4, 1e-5)

    exact = norm(*(t.double() for t in (x, w, b)))
    actual = torch.compile(norm, backend=session.backend, dynamic=dynamic)(x, w, b)
    for got, eager, true in zip(actual, norm(x, w, b), exact, strict=True):
        allowed = 2 * (eager.double() - true).norm() + 6e-8 * true.norm()
        assert (got.double() - true).norm() <= allowed
        assert got.stride() == eager.stride()
    x[1, 0, 3, 4] = torch.nan
    actual = torch.compile(norm, backend=session.backend, dynamic=dynamic)(x, w, b)
    for got, eager in zip(actual, norm(x, w, b), strict=True):
        assert torch.equal(got.isnan(), eager.isnan())
