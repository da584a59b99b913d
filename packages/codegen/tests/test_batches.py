"""How kernels are put into translation units."""

from gyrator_codegen.language import balanced, units_needed


def test_units_are_as_large_as_allowed_and_as_many_as_workers():
    assert units_needed([10] * 8, 1000, 2) == 2
    assert units_needed([10, 10, 10], 1000, 2) == 1
    assert units_needed([500] * 6, 1000, 1) == 3
    assert units_needed([], 1000, 2) == 0


def test_groups_add_units_up_to_the_number_of_workers():
    assert units_needed([10] * 4, 1000, 8, 3) == 4
    assert units_needed([10] * 4, 1000, 2, 3) == 2
    assert units_needed([10] * 4, 1000, 2, 4) == 2
    assert units_needed([10] * 4, 10, 2, 3) == 4
    assert units_needed([10], 1000, 8, 1) == 1


def test_units_are_balanced():
    assert balanced([10] * 8, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert balanced([10, 10, 20, 40], 2) == [[0, 1, 2], [3]]
    assert balanced([10] * 4, 4) == [[0], [1], [2], [3]]
    assert balanced([10, 10, 10], 1) == [[0, 1, 2]]
    assert balanced([], 0) == []
