"""Loops in turns take every element of a stretch once, whatever is known of its length."""

from hypothesis import given
from hypothesis import strategies as st

from gyrator_codegen.turns import Rest, turns_of


def taken(length, width, copies, turns):
    """Return how many elements the parts of a loop take, as printers write them."""
    at, turn = 0, width * copies
    while turns.whole and (at < length if turns.rest is Rest.NOTHING else at + turn <= length):
        at += turn
    match turns.rest:
        case Rest.STEPS:
            while at < length:
                at += width
        case Rest.PART if at < length:
            at += min(width, length - at)
        case Rest.MIXED:
            while at < length:
                at += min(width, length - at)
    return at


@given(
    count=st.integers(0, 200), multiple=st.sampled_from([1, 2, 3, 4, 8, 16, 48, 64]),
    width=st.sampled_from([1, 4, 8, 16]), copies=st.sampled_from([1, 2, 4]), known=st.booleans(),
)  # fmt: skip
def test_every_element_is_taken_once(count, multiple, width, copies, known):
    length = count * multiple
    turns = turns_of(length if known else None, multiple, width, copies)
    assert taken(length, width, copies, turns) == length


@given(count=st.integers(0, 20), width=st.sampled_from([4, 8]), copies=st.sampled_from([1, 2, 4]))
def test_what_is_a_multiple_of_a_turn_leaves_nothing(count, width, copies):
    turn = width * copies
    exact = turns_of(count * turn, count * turn, width, copies)
    assert turns_of(None, turn, width, copies).rest is Rest.NOTHING
    assert exact.rest is (Rest.NOTHING if count else Rest.STEPS)
