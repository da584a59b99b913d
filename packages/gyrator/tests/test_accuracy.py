"""The rule that judges results, on errors with known answers."""

import pytest
import torch

from gyrator.accuracy import within_bound, worst_error


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


def test_gradients_are_taken_together() -> None:
    exact = [torch.tensor(2.0).double(), torch.tensor([3.0]).double(), torch.zeros(1).double()]
    got = [torch.tensor(2.0), torch.tensor([3.0]), torch.tensor([0.3])]
    assert worst_error(got, exact, single=1) == pytest.approx(0.1)
    assert worst_error(got, exact, single=3) == float("inf")
