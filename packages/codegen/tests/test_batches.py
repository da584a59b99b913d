"""How kernels are put into translation units."""

from gyrator_codegen.language import balanced


def test_units_are_balanced():
    assert balanced([10] * 8, 1000, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert balanced([10, 10, 10], 1000, 2) == [[0, 1, 2]]
    assert balanced([500] * 6, 1000, 1) == [[0, 1], [2, 3], [4, 5]]
    assert balanced([], 1000, 2) == []


def test_groups_add_units_up_to_the_number_of_workers():
    assert balanced([10] * 4, 1000, 8, 3) == [[0], [1], [2], [3]]
    assert balanced([10] * 4, 1000, 2, 3) == [[0, 1], [2, 3]]
    assert balanced([10] * 4, 1000, 2, 4) == [[0, 1], [2, 3]]
    assert balanced([10] * 4, 10, 2, 3) == [[0], [1], [2], [3]]
    assert balanced([10], 1000, 8, 1) == [[0]]
