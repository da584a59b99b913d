"""Index arithmetic of reshapes, transposes and slices, under facts."""

import pytest

from gyrator_ir.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Const,
    ExprError,
    ShapeFacts,
    Sym,
    eq,
    evaluate,
    le,
    lt,
    maximum,
    minimum,
    ne,
    parse_cond,
    parse_expr,
    to_text,
    where,
)

s0, s1, s2, s3, u0, u1 = map(Sym, ("s0", "s1", "s2", "s3", "u0", "u1"))
i0, i1, i2, i3 = map(Sym, ("i0", "i1", "i2", "i3"))


def split(flat, sizes):
    indices = []
    for size in reversed(sizes[1:]):
        indices.insert(0, flat % size)
        flat = flat // size
    return [flat, *indices]


def merge(indices, sizes):
    flat = ZERO
    for index, size in zip(indices, sizes, strict=True):
        flat = flat * size + index
    return flat


@pytest.mark.parametrize(
    "sizes",
    [(3, 4), (2, 1, 5), (8, 64, 7, 3), (s0, s1), (s0, s1, s2), (s0, 4, s1), (s0, s1, s2, 64),
     (s0 + 1, s1), (s0, s1 + 1), (s0, 4 * s1, s2), (2, s0 // 2 + 1, s1)],
)  # fmt: skip
def test_splitting_what_was_merged_gives_the_indices(sizes):
    loops = (i0, i1, i2, i3)[: len(sizes)]
    facts = ShapeFacts().with_ranges(dict(zip(loops, sizes, strict=True)))
    expected = [facts.simplify(loop) for loop in loops]

    assert expected == [facts.simplify(index) for index in split(merge(loops, sizes), sizes)]


@pytest.mark.parametrize("sizes", [(3, 4, 5), (s0, s1, s2), (s0, 4, s1), (s0, 8 * s1, s2)])
def test_merging_what_was_split_gives_the_flat_index(sizes):
    flat = i0
    total = ONE
    for size in sizes:
        total = total * size
    facts = ShapeFacts().with_range(s0, 1).with_range(s1, 1).with_range(s2, 1)
    facts = facts.with_ranges({flat: total})

    assert facts.simplify(merge(split(flat, sizes), sizes)) is flat


def test_reshape_to_other_dimensions_and_back():
    facts = ShapeFacts().with_ranges({i0: 6, i1: 8, i2: 10})
    flat = merge((i0, i1, i2), (6, 8, 10))
    other = split(flat, (12, 40))
    back = split(merge(other, (12, 40)), (6, 8, 10))

    assert [facts.simplify(index) for index in back] == [i0, i1, i2]
    assert to_text(facts.simplify(other[0])) == "2*i0 + i1 // 4"
    assert to_text(facts.simplify(other[1])) == "i2 + 10*(i1 % 4)"


def test_a_size_of_one_is_index_zero():
    assert ShapeFacts().with_ranges({i0: 1}).simplify(7 * i0 + i1) is i1


def test_blocks_by_a_symbolic_size():
    facts = ShapeFacts().with_ranges({i0: s0, i1: s1})

    assert facts.simplify((s1 * i0 + i1) // (4 * s1)) is i0 // 4
    assert facts.simplify((s1 * i0 + i1) % (4 * s1)) is s1 * (i0 % 4) + i1


def test_blocks_by_a_size_of_unknown_sign_stay():
    facts = ShapeFacts().with_range(i1, 0, 3)
    quotient = (4 * i0 + i1) // (4 * s1)

    assert evaluate(facts.simplify(quotient), {i0: 0, i1: 3, s1: -1}) == -1
    assert facts.with_range(s1, 1).simplify(quotient) is i0 // s1


def test_loops_over_loops():
    facts = ShapeFacts().with_ranges({i0: s0}).with_ranges({i1: i0 + 1, i0: s1})

    assert facts.known(lt(i1, s0 + 1))
    assert facts.known(lt(i0, s0))
    assert facts.known(lt(i0, s1))
    assert facts.known_positive(s1)
    assert facts.known(lt(i1, s0))
    assert not facts.known(lt(i1, s0 - 1))
    equal = ShapeFacts().with_equal(s1, s0).with_ranges({i0: s1})
    assert equal.known(lt(i0, s0))


def test_divisibility():
    facts = ShapeFacts().with_divisible(s0, 8).with_range(s0, 8)

    assert facts.simplify((s0 * s1) % (4)) is ZERO
    assert facts.simplify((s1) % (4)) is not ZERO
    assert facts.simplify(4 * ((s0 + 3) // 4)) is s0
    assert facts.simplify((s0 + 5) % 4) is ONE
    assert facts.known(ne(s0, 12))
    assert facts.known(parse_cond("s0 % 8 == 0"))
    assert facts.simplify((s0 + i0) // 4) is s0 // 4 + i0 // 4
    with pytest.raises(ExprError) as caught:
        facts.with_divisible(s0, 0)
    assert caught.value.diagnostic.code == "GY-EXPR-005"


def test_equalities_replace():
    facts = ShapeFacts().with_equal(s1, s0).with_hint(s0, 5)

    assert facts.known(eq(s1 * 4, 4 * s0))
    assert facts.simplify(s1 - s0) is ZERO
    assert facts.hint(s1 + 1) == 6
    assert facts.hint(s2) is None
    assert facts.with_range(s1, 2, 9).bounds(s0) == (2, 9)
    assert facts.with_divisible(s1, 4).simplify((s0) % (2)) is ZERO
    assert not facts.known(eq(s0, s2))
    assert ShapeFacts().with_equal(s2, 4 * s0).simplify((s2) % (4)) is ZERO
    assert ShapeFacts().with_range(s1, 3, 7).with_equal(s1, s0).bounds(s0) == (3, 7)


def test_equal_facts_are_equal_values_whatever_the_order():
    one = ShapeFacts().with_range(s0, 2, 9).with_hint(s0, 3).with_divisible(s1, 4)
    two = ShapeFacts().with_divisible(s1, 4).with_range(s0, None, 9).with_hint(s0, 3)

    assert one == two.with_range(s0, 2)
    assert hash(one) == hash(two.with_range(s0, 2))
    assert one != two


def test_bounds():
    facts = ShapeFacts().with_range(s0, 2, 10).with_ranges({i0: s0, i1: 8})

    assert facts.bounds(8 * i0 + i1) == (0, 79)
    assert facts.bounds(i0 - i1) == (-7, 9)
    assert facts.bounds(s1) == (None, None)
    assert facts.bounds(i2) == (0, None)
    assert facts.bounds(minimum(i0, s1)) == (None, 9)
    assert facts.bounds(maximum(i0, s1)) == (0, None)
    assert facts.bounds(where(s1.lt(0), i0, i1 - 9)) == (-9, 9)
    assert facts.bounds(i0 * (i1 - 3)) == (-27, 63)
    assert facts.bounds(i0 // s0) == (0, 0)
    assert facts.bounds(s1 % s0) == (0, 9)
    assert facts.bounds(s1 * s1) == (0, None)


def test_minima_and_conditions_are_decided():
    facts = ShapeFacts().with_ranges({i0: s0}).with_range(s0, 4)

    assert facts.simplify(minimum(i0, s0)) is i0
    assert facts.simplify(maximum(i0, s0, 3)) is s0
    assert facts.simplify(i0.lt(s0)) is TRUE
    assert facts.simplify(i0.ge(s0)) is FALSE
    assert facts.simplify(where(i0.lt(s0), i0, 7)) is i0
    assert facts.simplify(where(i0.lt(0), i0, 7)) is Const(7)
    assert not facts.known(i0.lt(s0 - 1))


def test_indices_stay_below_the_number_of_elements():
    facts = ShapeFacts().with_ranges({i0: s0, i1: s1, i2: s2})

    assert facts.known(lt(merge((i0, i1, i2), (s0, s1, s2)), s0 * s1 * s2))
    assert facts.known_nonnegative(merge((i0, i1, i2), (s0, s1, s2)))
    assert not facts.known(lt(merge((i0, i1, i2), (s0, s1, s2)), s0 * s1 * s2 - 1))


def test_padded_extents():
    facts = ShapeFacts().with_range(s0, 1).with_ranges({i0: 4 * ((s0 + 3) // 4)})

    assert facts.known(lt(i0, s0 + 4))
    assert facts.known(le(s0, 4 * ((s0 + 3) // 4)))
    assert not facts.known(lt(s0, 4 * ((s0 + 3) // 4)))
    assert facts.known(lt(i0, s0 + 3))
    assert not facts.known(lt(i0, s0 + 2))


def test_assumed_conditions_count():
    facts = ShapeFacts().with_cond(parse_cond("u0 + u1 <= s0 and 0 <= u0"))

    assert facts.known(parse_cond("u0 + u1 <= s0"))
    assert facts.known(parse_cond("u0 + u1 < s0 + 1"))
    assert facts.known(parse_cond("u1 <= s0"))
    assert not facts.known(parse_cond("u0 <= s0"))
    assert facts.known(parse_cond("0 <= u0"))


def test_ranges_that_refer_to_each_other_end():
    facts = ShapeFacts().with_cond(u0.le(u1)).with_cond(u1.le(u0)).with_cond(u0.ge(3))

    assert facts.bounds(u0) == (3, None)
    assert facts.known(le(u0, u1))
    assert facts.known(eq(u0, u1))


def test_a_division_by_a_size_known_to_be_zero_is_left_alone():
    facts = ShapeFacts().with_range(s0, 0, 0)

    assert facts.simplify(i0 // s0) is i0 // s0
    assert facts.simplify(where(s0.eq(0), i1, i0 // s0)) is i1


def test_a_range_that_refers_to_itself_through_an_equality_ends():
    facts = ShapeFacts().with_equal(s1, s0).with_range(s0, 2, s1 + 1)

    assert facts.bounds(s0) == (2, None)
    assert facts.known(le(2, s1))


def test_nothing_is_assumed_of_sizes():
    facts = ShapeFacts()

    assert not facts.known_nonnegative(s0)
    assert not facts.known(ne(s0, 0))
    assert facts.known_nonnegative(i0)
    assert facts.simplify(i0 // s0) is i0 // s0


def test_truncating_division_is_offered_where_it_agrees():
    facts = ShapeFacts().with_ranges({i0: s0})

    assert facts.nonnegative_division(i0 // s0)
    assert facts.nonnegative_division(i0 % 4)
    assert not facts.nonnegative_division(s1 // 4)
    assert not facts.nonnegative_division(i0 // s1)


def test_quotients_and_remainders_put_together_differently_are_known_equal():
    a = parse_expr("i0 // 4 + i0 % 4 + 4*s0")
    b = parse_expr("i0 - 3*(i0 // 4) + 4*s0")

    assert ShapeFacts().known(eq(a, b))
    assert not ShapeFacts().known(eq(a, b + 1))
