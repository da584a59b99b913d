"""Models have eager's bits, rows are the same in any batch, and a difference is found."""

import pytest
import torch

from gyrator_conformance.batch_invariant import compare as rows_of
from gyrator_conformance.bitwise import compare, same
from gyrator_conformance.models import all_models
from gyrator_conformance.profiles import find_target

FORMULAS = pytest.mark.skipif(
    torch.__version__.startswith("2.11."),
    reason="PyTorch 2.11 rewrites in-place formulas with other roundings, with any backend",
)


@pytest.mark.parametrize(
    ("name", "training"),
    [pytest.param("adamw-step", False, marks=FORMULAS), ("mixer", True)],
)
def test_models_have_eagers_bits(name: str, training: bool) -> None:
    row = compare(all_models()[name], training, find_target("cpu"), rounds=1)
    assert row.differing == 0 and row.tensors > 5


def test_a_bit_is_a_difference() -> None:
    x = torch.tensor([1.0, torch.nan])
    assert same(x, x.clone())
    assert not same(x, torch.nextafter(x, 2 * x))
    assert not same(x, x.double())


def test_rows_are_the_same_in_any_batch() -> None:
    row = rows_of(all_models()["mlp"], find_target("cpu"))
    assert row.rowwise == 4 and row.differing == 0
