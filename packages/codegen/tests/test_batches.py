"""How kernels are put into translation units."""

from gyrator_codegen.language import balanced


def test_units_are_balanced():
    assert balanced([10] * 8, 1000, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert balanced([10, 10, 10], 1000, 2) == [[0, 1, 2]]
    assert balanced([500] * 6, 1000, 1) == [[0, 1], [2, 3], [4, 5]]
    assert balanced([], 1000, 2) == []
