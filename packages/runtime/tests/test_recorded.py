"""Whether tensors are the ones of an earlier call, and have not been written to since."""

import pytest
import torch

from gyrator_runtime.native import Recorded
from gyrator_runtime.native.shim import version_address


@pytest.fixture
def args():
    """Arguments of a call, of which those at 1, 3 and 4 are recorded."""
    base = torch.randn(6)
    recorded = torch.nn.Parameter(torch.randn(2, 3)), base[2:], torch.empty(0)
    return [torch.randn(2), recorded[0], 5, recorded[1], recorded[2]]


def check(runner, args):
    indices = 1, 3, 4
    return runner.unchanged(Recorded.of([args[k] for k in indices]), indices)


def test_this_pytorch_has_the_function_for_versions():
    assert version_address()


def test_what_is_not_recorded_may_change(runner, args):
    unchanged = check(runner, args)
    assert unchanged(args) is True
    args[0].add_(1)
    args[2] = None
    with torch.no_grad():
        assert unchanged([*args, "more"]) is True


@torch.no_grad()
def test_writes_in_place_are_seen(runner, args):
    for index in (1, 3, 4):
        unchanged = check(runner, args)
        args[index].add_(1)
        assert unchanged(args) is False
    unchanged = check(runner, args)
    args[3]._base.zero_()
    assert unchanged(args) is False


def test_other_memory_is_seen(runner, args):
    unchanged = check(runner, args)
    args[1].data = torch.randn(2, 3)
    assert unchanged(args) is False


def test_other_tensors_are_seen(runner, args):
    unchanged = check(runner, args)
    for index in (1, 3, 4):
        changed = list(args)
        changed[index] = args[index].detach()
        assert unchanged(changed) is False
        changed[index] = None
        assert unchanged(changed) is False
    assert unchanged(args) is True


def test_tensors_without_a_version_have_changed(runner, args):
    unchanged = check(runner, args)
    with torch.inference_mode():
        other = torch.randn(2, 3)
    torch.utils.swap_tensors(args[1], torch.nn.Parameter(other, requires_grad=False))
    assert unchanged(args) is False


def test_recorded_tensors_live_as_long_as_the_check(runner):
    unchanged = check(runner, [None, torch.ones(2), None, torch.ones(3), torch.ones(4)])
    assert unchanged([None, torch.ones(2), None, torch.ones(3), torch.ones(4)]) is False
